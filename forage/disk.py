"""Disk: what has to reach it, and in which order, so that not even a power cut loses what was said to be saved.

A file survives once its contents are synced and the folder that holds its name is synced too. A rename is atomic, but
until its folder is synced, either name may come back. So the order is always: contents, rename, folder, and only then
remove what was replaced.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux's renameat2
NOT_SUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK)  # what file systems without hard links say
GONE = (errno.ENOENT, errno.ESTALE)  # the second is NFS's: another machine removed the file that is open here


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an error of the system that names no file this one's name, such as that of a full disk.

    safetensors and tokenizers have the system's number only in the message of an error of their own.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = error.filename or str(path)
        raise
    except Exception as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def sync(path: Path) -> None:
    """Wait until a file's contents, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in NOT_SUPPORTED):  # some network file systems sync names by themselves
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until everything in a folder is on the disk, but for the folder's own name."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            sync(path)
    sync(folder)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, on the disk by name."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def append(path: Path, lines: bytes) -> None:
    """Append whole lines in one write, and wait until they are on the disk.

    A last line that was cut off because its writer died is removed first.
    """
    make_folder(path.parent)
    with naming(path), path.open("ab+") as file:
        is_new = not file.tell()
        file.truncate(end_of_lines(path))
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync(path.parent)


def end_of_lines(path: Path) -> int:
    """Where the last whole line ends; reads the whole file only if its last line is cut off."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 1))
        return size if file.read(1) == b"\n" else path.read_bytes().rfind(b"\n") + 1


def exchange(one: Path, other: Path) -> bool:
    """Swap two names at one stroke; False where the system or its file system can't."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if not libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        return True
    number = ctypes.get_errno()
    if number in NOT_SUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))
