"""Edits: how a store's files change at one stroke, and what an open handle keeps of those that it was opened with."""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from pathlib import Path

from forage.files import OURS, in_turn, sync

NEXT = f".next{OURS}"  # the folder of an edit's files: once it is there, the edit is made
TURN = ".turn"  # held for a moment, by whoever moves files or asks Chroma
READERS = ".readers"  # shared by handles that may still ask for vectors


def finish_edit(path: Path) -> None:
    """Move the files of an edit to their places; whoever comes by does, in case its process was killed."""
    if (path / NEXT).exists():
        with in_turn(path / TURN):
            for part in (path / NEXT).glob("*"):
                part.replace(path / part.name)
            sync(path)
            with suppress(FileNotFoundError):  # another process was first
                (path / NEXT).rmdir()


class Kept:
    """A file held open, so that it stays readable when another takes its name; closed with its last owner."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self.path = Path(f"/dev/fd/{self._file}")

    def share(self) -> None:
        """Let others know that it is in use."""
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def is_mine(self) -> bool:
        """Whether nobody else shares it; if so, nobody can until `share` is called again."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.share()  # what asks for the whole lock and fails has none
            return False
        return True


def kept(path: Path) -> Kept | None:
    """None for a file that is not there, as in a store of an older version."""
    return Kept(path) if path.exists() else None
