"""A folder of a user's own files: every file in it, and why those that are not documents are left out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forage.errors import UserError

DOCUMENT_TYPES = {".txt": "txt", ".text": "txt", ".md": "md", ".markdown": "md", ".html": "html", ".htm": "html"}
DOCUMENT_TYPES |= {".xhtml": "html", ".pdf": "pdf"}


class Unreadable(Exception):
    """Why a file gives no document."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file, or a folder that is left out. `cause` is "ok" for a file of a type that can be read."""

    path: Path
    name: str
    """Relative to the folder, in text that UTF-8 can hold; unique in the folder."""
    cause: str = "ok"
    detail: str = ""

    @property
    def type(self) -> str:
        return DOCUMENT_TYPES.get(self.path.suffix.lower(), "")


def walk(folder: Path) -> Iterator[Found]:
    """What is in a folder and its sub-folders, by name; links are followed, but no folder is entered twice.

    Of a hidden folder, and of one that can't be read, only the folder itself is told.
    """
    if not folder.is_dir():
        raise UserError(f"--documents {folder}: no such folder; name the folder that holds your files")
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            entry = place.stat()
            if (entry.st_dev, entry.st_ino) in seen:
                yield Found(place, _name(place, folder), "link to a folder read before")
                continue
            seen.add((entry.st_dev, entry.st_ino))
            inside = sorted(place.iterdir(), key=lambda path: os.fsencode(path.name))
        except OSError as error:
            yield Found(place, _name(place, folder), "can't be read", error.strerror or "")
            continue
        folders = []
        for path in inside:
            found = _judged(path, folder)
            if found is None:
                folders.append(path)
            else:
                yield found
        waiting += reversed(folders)


def _judged(path: Path, folder: Path) -> Found | None:
    """None for a folder to enter."""
    name = _name(path, folder)
    if path.name.startswith("."):
        return Found(path, name, "hidden")
    try:
        mode = path.stat().st_mode
    except OSError as error:  # ELOOP: a link to itself
        nowhere = path.is_symlink()
        return Found(path, name, "link to nothing" if nowhere else "can't be read", error.strerror or "")
    if stat.S_ISDIR(mode):
        return None
    if not stat.S_ISREG(mode):
        return Found(path, name, "not a file")  # a pipe would be waited for
    if path.suffix.lower() not in DOCUMENT_TYPES:
        return Found(path, name, "other type", path.suffix.lower() or "no suffix")
    return Found(path, name)


def _name(path: Path, folder: Path) -> str:
    """Bytes of a file's name that are not UTF-8 are shown as \\xe9, so that two such names stay two."""
    return os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace")
