"""Files: written whole or not at all, locked, in JSON Lines, and safe from a power cut; where a script may write.

A file survives once its contents are synced and the folder that holds its name is synced too. A rename is atomic, but
until its folder is synced, either name may come back. So the order is always: contents, rename, folder, and only then
remove what was replaced.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gzip
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

from forage.errors import UserError
from forage.text import encodable, from_json, typed

T = TypeVar("T")

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


@contextmanager
def takes_files(path: Path) -> Iterator[None]:
    """Refuse a place such as /proc, which says of what can't be made there that it is not there."""
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path} can't be made: no files can be kept there; choose another place") from error


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


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, on the disk by name."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    with takes_files(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync(path.parent)


def append(path: Path, lines: bytes) -> None:
    """Append whole lines in one write, and wait until they are on the disk.

    A last line that was cut off because its writer died is removed first.
    """
    make_folder(path.parent)
    with naming(path), path.open("ab+") as file:
        is_new = not (size := file.tell())
        file.seek(max(0, size - 1))
        if file.read(1) != b"\n":
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync(path.parent)


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


# Files and folders, whole or not at all


OURS = ".forage"  # ends the hidden names of what is half-written, stands aside or is going: nobody else's do


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Write a text file so that nobody finds half of it, even after a power cut: it is renamed once it is synced."""
    make_folder(path.parent)
    partial = path.with_name(f".{path.name}.{os.getpid()}{OURS}")
    try:
        with naming(path), partial.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Like `replacing`, for a folder: fill the yielded one, and it takes its final name if nothing went wrong.

    With `overwrite`, an older folder of that name is removed once the new one is on the disk in its place.
    """
    folder = folder.resolve()  # so that a link to a folder on another disk stays one
    make_folder(folder.parent)
    partial = hidden_beside(folder)
    try:
        with naming(folder):
            yield partial
        # safetensors writes files that only their owner can read; a server beside the trainer runs as another user.
        partial.chmod(0o755)
        for path in partial.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for path in partial.rglob("*"):
            if not path.is_symlink():
                sync(path)
        sync(partial)
        _put(partial, folder, overwrite=overwrite)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def create_once(path: Path, text: str) -> bool:
    """Create a file with its contents; False if it is there, whichever machine made it and whether it can be seen here.

    The file system's server decides, not this machine's view of the folder. Where there are no hard links, the file may
    be seen empty for a moment.
    """
    made, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    with os.fdopen(made, "w", encoding="utf-8") as file:
        file.write(text)
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return False
    finally:
        os.unlink(partial)
    return True


def _put(partial: Path, folder: Path, *, overwrite: bool) -> None:
    """Give a filled folder its name, on the disk, or leave everything as it was."""
    replaces = overwrite and folder.exists()
    if replaces:
        _exchange(partial, folder)
    else:
        partial.rename(folder)
    try:
        sync(folder.parent)
    except OSError:
        _exchange(partial, folder) if replaces else folder.rename(partial)
        raise


def _exchange(partial: Path, folder: Path) -> None:
    """Swap the two; where the file system can't do that at one stroke, the old one stands aside in between."""
    if not exchange(partial, folder):
        aside = aside_of(folder)
        folder.rename(aside)
        partial.rename(folder)
        sync(folder.parent)
        aside.rename(partial)


def hidden_beside(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=OURS, dir=folder.parent))


def aside_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.aside{OURS}")


def remove_folder(folder: Path) -> None:
    """Remove a folder so that no reader, crash or power cut finds half of it under its name."""
    going = hidden_beside(folder)
    folder.rename(going)  # an empty folder may be replaced
    sync(folder.parent)
    shutil.rmtree(going, ignore_errors=True)  # what can't be removed now is cleared at the next start


@contextmanager
def locked(path: Path, message: str, *, remove: bool = False) -> Iterator[None]:
    """Hold a lock file; the system releases it when this process ends, however it ends.

    If another process holds it, UserError(message). With `remove`, the file goes when the lock is released, unless it
    holds something: then it is somebody's own.
    """
    with takes_files(path):
        opened = path.open("a")
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(message) from error
        if remove and not is_at(path, file):  # its holder removed it after it was opened here
            raise UserError(message)
        try:
            yield
        finally:
            if remove and not file.tell():
                path.unlink(missing_ok=True)


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Hold a lock file once nobody else does: for what takes a moment, such as reading and adding a few lines."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_at(path: Path, file: TextIO) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write dataclasses or mappings atomically, one per line."""
    with replacing(path) as file:
        for row in rows:
            record = row if isinstance(row, Mapping) else asdict(row)
            file.write(encodable(json.dumps(record, ensure_ascii=False)) + "\n")


def typed_lines(
    kind: type[T], path: Path, what: str, way_out: str, extra: Literal["forbid", "ignore"] = "forbid"
) -> Iterator[T]:
    """The dataclasses of a .jsonl; one line names the first that is none."""
    for number, row in json_lines(path):
        try:
            yield typed(kind, row, extra)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not {what} ({error}); {way_out}") from error


def json_lines(path: Path, broken: list[str] | None = None) -> Iterator[tuple[int, Any]]:
    """(line number, value) of each non-blank line of a .jsonl or .jsonl.gz.

    A line that is not JSON raises an error with its number, or is added to `broken` if that list is given.
    """
    number = 0
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    value = from_json(line)
                except ValueError as error:
                    problem = f"{path}:{number}: not JSON ({error})"
                    if broken is None:
                        raise UserError(f"{problem}; fix or delete that line") from error
                    broken.append(problem)
                else:
                    yield number, value
        except (gzip.BadGzipFile, EOFError) as error:
            raise UserError(f"{path}: damaged after line {number} ({error}); download it again") from error


# Outputs: where a script may write, one process at a time.
#
# Never over what it reads, nor over a folder that it did not make; what a killed process left half-written goes.

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


def check_files_apart(option: str, folder: Path, written: Collection[str], reads: Mapping[str, Path | str]) -> None:
    """Refuse inputs that are among the files, or in the folders, that a script writes into its output folder."""
    for target in written:
        check_apart(option, folder / target, reads)


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
            if path == aside_of(whole := folder / half["name"]) and not whole.exists():
                path.rename(whole)
                sync(folder)
            elif path.is_dir():
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
