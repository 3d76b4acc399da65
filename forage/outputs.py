"""Outputs: where a script may write, one process at a time.

Never over what it reads, nor over a folder that it did not make; what a killed process left half-written goes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from forage.errors import UserError
from forage.files import OURS, locked, make_folder, remove_folder, replacing_folder, restore_aside

# What a killed process of ours may have left in any folder.
LEFT_BY_WRITERS = (".lock", f".*{OURS}", "code.diff", "environment.json")


def check_apart(option: str, output: Path, reads: Mapping[str, Path | str | None], *, nested: bool = False) -> None:
    """Refuse an output that is one of the inputs, given by their options; links are followed.

    Unless `nested`, as where files are only added, an output inside of an input or around one is refused too. Names
    that are not on this machine, such as those of the hub, can't be written over.
    """
    for name, path in reads.items():
        if path is not None and Path(path).exists():
            out, source = output.resolve(), Path(path).resolve()
            if out == source:
                raise UserError(f"{option} {output} is {name}, which would be written over; choose another {option}")
            if not nested and out in source.parents:
                raise UserError(
                    f"{option} {output} holds {name} {path}, which would go with it; choose another {option}"
                )
            if not nested and source in out.parents:
                raise UserError(f"{option} {output} is inside of {name} {path}; choose another {option}")


def check_folder(option: str, output: Path) -> None:
    """Refuse an output folder where a file is."""
    if output.exists() and not output.is_dir():
        raise UserError(f"{option} {output} is a file; name a folder, or move it away")


def check_files_apart(option: str, folder: Path, written: Collection[str], reads: Mapping[str, Path | None]) -> None:
    """Refuse inputs that are among the files, or in the folders, that a script writes into its output folder."""
    for name, path in reads.items():
        for target in written:
            out = (folder / target).resolve()
            if path is not None and (path.resolve() == out or out in path.resolve().parents):
                raise UserError(f"{option} {folder}: {name} {path} would be written over; choose another {option}")


def check_replaceable(option: str, folder: Path, mark: str, written: Collection[str] = ("*",)) -> None:
    """Refuse to replace what is not this script's own folder: one with `mark` and nothing but what it writes."""
    if not folder.exists():
        return
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else [folder.name]
    names = [name for name in names if not matches(name, LEFT_BY_WRITERS)]
    if not folder.is_dir() or (names and mark not in names):
        raise UserError(f"{option} {folder} was not made by this script (it has no {mark}); choose another {option}")
    foreign = [name for name in names if not matches(name, (mark, *written))]
    if foreign:
        raise UserError(
            f"{option} {folder} holds {foreign[0]}, which this script did not write; move that away, or choose another "
            f"{option}"
        )


def matches(name: str, patterns: Collection[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


# The temporary names that forage/files.py gives to what is being written or removed.
HALF_MADE = re.compile(rf"\.(?P<name>.+)\.[a-z0-9_]+{re.escape(OURS)}")
# Of a step in state/: its checkpoint, and the random states of several processes.
OF_STEP = re.compile(r"(?:random-)?(\d{6})(?:\.safetensors)?")

LOCK = ".lock"


@contextmanager
def filling_folder(folder: Path, *parts: str, way_out: str = "--output-dir") -> Iterator[None]:
    """Hold a folder that a script fills step by step; `parts` are the folders inside it that files are written to."""
    make_folder(folder)
    message = f"{folder} is being written by another process; wait until it ends, or give another {way_out}"
    with locked(folder / LOCK, message, remove=True):
        for part in ("", *parts):
            clear_half_written(folder / part)
        yield


@contextmanager
def making_folder(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Like replacing_folder, for one process at a time: a second one gets an error before it has done any work."""
    make_folder(folder.parent)
    message = f"{folder} is being written by another process; wait until it ends, or choose another folder"
    with locked(folder.with_name(f".{folder.name}.lock"), message, remove=True):
        clear_half_written(folder.parent, folder.name)
        if folder.exists() and not overwrite:
            raise UserError(f"{folder} was made by another process meanwhile; use it, or choose another folder")
        with replacing_folder(folder, overwrite=overwrite) as partial:
            yield partial


def empty_folder(folder: Path, mark: str) -> None:
    """Remove everything in a folder that this process holds, except for the lock that it holds it by.

    `mark`, the file that shows whose folder it is, goes last: a start after a kill still sees that it may go on.
    """
    for path in sorted(folder.iterdir(), key=lambda path: path.name == mark):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


def clear_half_written(folder: Path, name: str = "") -> None:
    """Remove what killed processes left half-written in a folder that this process holds, or of one name in it.

    What stood aside for a new one that never came takes its name again. Example: .policy.a1b2c3d4.forage goes, and
    .policy.settings, which is the user's, stays.
    """
    for path in list(folder.glob(".*")):
        half = HALF_MADE.fullmatch(path.name)
        if half and name in ("", half["name"]):
            restore_aside(folder / half["name"])
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)  # what can't be removed now is cleared at the next start
            else:
                path.unlink(missing_ok=True)


def clear_superseded(state: Path) -> None:
    """Remove what is older than the newest checkpoint: a process may be killed when it has just written that one."""
    steps = {path: int(found[1]) for path in state.glob("*") if (found := OF_STEP.fullmatch(path.name))}
    newest = max((step for path, step in steps.items() if path.is_dir()), default=0)
    for path in [path for path, step in steps.items() if step < newest]:
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink()
