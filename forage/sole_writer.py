"""Sole writer: one process at a time writes an output folder, and clears away what a killed one left half-written."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forage.disk import make_folder
from forage.errors import UserError
from forage.files import ASIDE, locked, replacing_folder

# The temporary names that forage/files.py gives to what is being written or removed.
HALF_FILE = re.compile(r"\..+\.\d+\.part")
HALF_FOLDER = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}")

LOCK = ".lock"


@contextmanager
def filling_folder(folder: Path, *parts: str, way_out: str = "--output-dir") -> Iterator[None]:
    """Hold a folder that a script fills step by step; `parts` are the folders inside it that files are written to."""
    make_folder(folder)
    message = f"{folder} is being written by another process; wait until it ends, or give another {way_out}"
    with locked(folder / LOCK, message):
        for part in ("", *parts):
            clear_half_written(folder / part)
        yield


@contextmanager
def making_folder(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Like replacing_folder, for one process at a time: a second one gets an error before it has done any work."""
    make_folder(folder.parent)
    message = f"{folder} is being written by another process; wait until it ends, or choose another folder"
    with locked_for_now(folder.with_name(f".{folder.name}.lock"), message):
        clear_half_made(folder)
        if folder.exists() and not overwrite:
            raise UserError(f"{folder} was made by another process meanwhile; use it, or choose another folder")
        with replacing_folder(folder, overwrite=overwrite) as partial:
            yield partial


@contextmanager
def locked_for_now(path: Path, message: str) -> Iterator[None]:
    """Like forage.files.locked, and the lock file is gone in the end: it stands in a folder that isn't the script's."""
    with ExitStack() as held:
        there = False
        while not there:  # else the process that held it has removed it since it was opened here
            file = held.enter_context(path.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(message) from error
            there = path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
        held.callback(path.unlink)  # before it is released
        yield


def empty_folder(folder: Path) -> None:
    """Remove everything in a folder that this process holds, except for the lock that it holds it by."""
    for path in folder.iterdir():
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


def clear_half_made(folder: Path) -> None:
    """Remove what killed processes left half-written beside a folder; an older one that stood aside takes its place."""
    aside = folder.with_name(f".{folder.name}{ASIDE}")
    if aside.exists() and not folder.exists():
        aside.rename(folder)
    for path in folder.parent.glob(".*"):
        half = HALF_FOLDER.fullmatch(path.name)
        if path.is_dir() and (path == aside or (half and half["name"] == folder.name)):
            shutil.rmtree(path)
