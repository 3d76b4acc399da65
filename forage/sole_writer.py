"""Sole writer: one process at a time writes an output folder, and clears away what a killed one left half-written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forage.disk import make_folder
from forage.errors import UserError
from forage.files import aside_of, locked, remove_folder, replacing_folder, restore_aside

# The temporary names that forage/files.py gives to what is being written or removed.
HALF_FILE = re.compile(r"\..+\.\d+\.part")
HALF_FOLDER = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}")
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
        clear_half_made(folder)
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


def clear_half_written(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder that this process holds."""
    for path in folder.glob(".*"):
        if HALF_FILE.fullmatch(path.name) and path.is_file():
            path.unlink()
        elif HALF_FOLDER.fullmatch(path.name) and path.is_dir():
            shutil.rmtree(path)


def clear_superseded(state: Path) -> None:
    """Remove what is older than the newest checkpoint: a process may be killed when it has just written that one."""
    steps = {path: int(found[1]) for path in state.glob("*") if (found := OF_STEP.fullmatch(path.name))}
    newest = max((step for path, step in steps.items() if path.is_dir()), default=0)
    for path in [path for path, step in steps.items() if step < newest]:
        if path.is_dir():
            remove_folder(path)
        else:
            path.unlink()


def clear_half_made(folder: Path) -> None:
    """Remove what killed processes left half-written beside a folder; an older one that stood aside takes its place."""
    restore_aside(folder)
    for path in folder.parent.glob(".*"):
        half = HALF_FOLDER.fullmatch(path.name)
        if path.is_dir() and (path == aside_of(folder) or (half and half["name"] == folder.name)):
            shutil.rmtree(path)
