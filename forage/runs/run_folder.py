"""Run folder: stores the options and the code's changes beside the results, and lets in only one trainer at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forage.disk import make_folder
from forage.errors import UserError, flag
from forage.files import clear_leftovers, locked, replacing
from forage.sole_writer import clear_half_written, clear_superseded


@contextmanager
def run_folder(folder: Path, options: Any, free: Sequence[str] = ()) -> Iterator[None]:
    """Lock a run folder for this process. When an existing run is resumed, only `free` options may change.

    A start that ends before it made anything, for example because --data names no data, leaves no options behind that
    would refuse the corrected command, and no folder.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    try:
        with locked(folder / ".lock", f"{folder} is in use by another trainer; give another --run-dir", remove=True):
            refuse_without_options(folder)
            parts = (folder / name for name in ("", "plans", "episodes", "sample", "state"))
            for part in (*parts, *folder.glob("episodes/*/")):
                clear_half_written(part)
            keep_options(folder, options, free)
            for name in ("adapters", "state"):
                clear_leftovers(folder / name)
            clear_superseded(folder / "state")
            try:
                yield
            except BaseException:  # Ctrl-C too; it is raised again
                forget_empty_run(folder)
                raise
    except BaseException:
        with suppress(OSError):  # one that holds something stays
            for path in made:
                path.rmdir()
        raise


def forget_empty_run(folder: Path) -> None:
    """Remove the options of a run that holds nothing else."""
    if {part.name for part in folder.iterdir()} <= {".lock", "config.json", "code.diff"}:
        for name in ("config.json", "code.diff"):
            (folder / name).unlink(missing_ok=True)


def refuse_without_options(folder: Path) -> None:
    """Refuse a folder whose run can't be compared with the options: what it holds may come from other ones."""
    if not (folder / "config.json").exists() and any((folder / part).exists() for part in ("adapters", "state")):
        raise UserError(
            f"{folder} holds a run but no config.json, so its options are not known; put config.json back, "
            f"{start_over(folder)}"
        )


def start_over(folder: Path) -> str:
    """The way out of a folder that can't be resumed; if parts of it stayed, they would pass for the new run's."""
    return f"give another --run-dir, or remove all of {folder} to start over"


def keep_options(folder: Path, options: Any, free: Sequence[str] = (), way_out: str = "another --run-dir") -> None:
    """Save the options as config.json and uncommitted code as code.diff; refuse the options of another run."""
    path = folder / "config.json"
    now = plain(options)
    if path.exists():
        fixed = {name: value for name, value in flat(now).items() if name not in free}
        if difference := changed(fixed, flat(read_config(path, now, way_out))):
            raise UserError(f"{folder} was begun with {difference}; give that, or {way_out}")
    else:
        with replacing(folder / "code.diff") as file:
            file.write(code_state())
    with replacing(path) as file:
        json.dump(now, file, indent=1)


def read_config(path: Path, now: Mapping[str, Any], way_out: str) -> dict[str, Any]:
    """The options of an earlier start; refuses a config.json that something else wrote, such as a model's."""
    try:
        before: dict[str, Any] = json.loads(path.read_text())
        old_names = flat(before).keys()
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is broken ({error}); put it back, or give {way_out}") from error
    if 2 * len(old_names & flat(dict(now)).keys()) < max(1, len(old_names)):
        raise UserError(f"{path} was not written by this script; give {way_out}")
    return before


def plain(options: Any) -> dict[str, Any]:
    """Options as JSON values, without API keys, which belong in no file and no tracker."""

    def without_key(part: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in part.items() if name != "api_key"}

    values: dict[str, Any] = json.loads(json.dumps(asdict(options), default=str), object_hook=without_key)
    return values


def changed(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Words for the first option that differs from before; options that `before` lacks are newer and don't count.

    Example: {"update.epochs": 2} after {"update.epochs": 1} gives "--epochs 1, not 2"; nothing changed gives "".
    """
    names = (name for name, value in now.items() if name in before and value != before[name])
    return next((f"{flag(name.rpartition('.')[2])} {before[name]}, not {now[name]}" for name in names), "")


def flat(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Example: {"a": 1, "b": {"c": 2}} gives {"a": 1, "b.c": 2}."""
    rows: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, dict):
            rows |= flat(value, f"{prefix}{name}.")
        else:
            rows[prefix + name] = value
    return rows


def code_state() -> str:
    """The commit and the uncommitted changes; empty outside a git checkout or without git."""
    here = Path(__file__).resolve().parent
    try:
        parts = [
            subprocess.run(["git", *args], cwd=here, capture_output=True, text=True, check=True).stdout  # noqa: S603, S607
            for args in (("rev-parse", "HEAD"), ("diff", "HEAD"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return "".join(parts)
