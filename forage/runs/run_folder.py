"""Run folder: one trainer at a time, its options and the code's changes beside the results, and what stands aside."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from forage.errors import UserError
from forage.files import clear_half_written, clear_superseded, locked, make_folder, replacing
from forage.machine import compute_dtype, processor
from forage.manifest import agree, plain, read_manifest, write_manifest
from forage.text import say

STALE = "stale"  # folder for what a run can't go on with, and that nobody may want to lose
SERVER_LOG = "vllm.log"
SETTINGS = {".lock", "config.json", "code.diff", "environment.json", "run.json", "agent.json", "model.json"}


@contextmanager
def run_folder(folder: Path, options: Any = None, free: Sequence[str] = (), **more: Any) -> Iterator[None]:
    """Lock a run folder for this process, and clear away what a killed one left half-written.

    With options, they are kept in config.json beside what else is given, such as digests of the data, and only `free`
    ones may change. A start that ends before it made anything, for example because --data names no data, leaves no
    options behind that would refuse the corrected command, and no folder.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    try:
        with locked(folder / ".lock", f"{folder} is in use by another trainer; give another --run-dir", remove=True):
            parts = (folder / name for name in ("", "plans", "episodes", "sample", "adapters", "state"))
            for part in (*parts, *folder.glob("episodes/*/")):
                clear_half_written(part)
            clear_superseded(folder / "state")
            if options is not None:
                keep_options(folder, options, free, **more)
            try:
                yield
            except BaseException:  # Ctrl-C too; it is raised again
                # Of a run that holds nothing but its settings, and why its server did not start, no settings stay.
                if {part.name for part in folder.iterdir()} <= SETTINGS | {SERVER_LOG}:
                    for name in SETTINGS - {".lock"}:
                        (folder / name).unlink(missing_ok=True)
                raise
    except BaseException:
        with suppress(OSError):  # one that holds something stays
            for path in made:
                path.rmdir()
        raise


def keep_options(
    folder: Path, options: Any, free: Collection[str] = (), way_out: str = "another --run-dir", **more: Any
) -> None:
    """Keep the options and what more is given in config.json, and refuse those of another run."""
    path = folder / "config.json"
    if path.exists() and "options" not in read_manifest(path, f"give {way_out}"):
        raise UserError(f"{path} was not written by this script; give {way_out}")
    agree(path, {"options": plain(options), **more}, way_out, [f"options.{name}" for name in free])
    keep_code(folder)


def keep_code(folder: Path) -> None:
    """Write the environment and the code's state when the run starts."""
    if not (folder / "code.diff").exists():
        write_manifest(folder / "environment.json", environment())
        with replacing(folder / "code.diff") as file:
            file.write(code_state())


def set_aside(run_dir: Path, paths: Iterable[Path], why: str) -> None:
    """Move files and folders into a new folder of stale/, under the names they had, and say so in one line."""
    there = [path for path in paths if path.exists()]
    if not there:
        return
    number = sum(1 for _ in (run_dir / STALE).glob("*"))
    target = run_dir / STALE / f"{number:03d}"
    for path in there:
        moved = target / path.relative_to(run_dir)
        make_folder(moved.parent)
        path.rename(moved)
    names = ", ".join(str(path.relative_to(run_dir)) for path in there[:3]) + ", ..." * (len(there) > 3)
    say(f"moved to {target}: {names} ({why})")


def environment() -> dict[str, str]:
    """What figures depend on by rounding, beside code and options: the machine and the packages."""
    import torch  # late, as refused options are told before it is loaded

    cpu = re.search(r"model name\s*: (.+)", processor())
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    machine = {
        "python": platform.python_version(),
        "processor": cpu[1] if cpu else platform.machine(),
        "gpu": gpu,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "auto": str(compute_dtype()).removeprefix("torch."),
    }
    return machine | {each.name: each.version for each in distributions()}


def code_state() -> str:
    """The commit and the uncommitted changes; empty outside a git checkout or without git."""
    here = Path(__file__).resolve().parent
    try:
        parts = [
            subprocess.run(["git", *args], cwd=here, capture_output=True, check=True).stdout  # noqa: S603, S607
            for args in (("rev-parse", "HEAD"), ("diff", "HEAD"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return b"".join(parts).decode(errors="replace")  # a file of the user's may have any encoding
