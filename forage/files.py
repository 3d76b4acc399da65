"""Files that are written whole or not at all, locks, and JSON Lines."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from forage.errors import UserError


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Write a text file so that a reader, or a crash, never sees half of it: temporary name, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """As `replacing`, for a folder: what is yielded is filled, and takes its name when nothing went wrong."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield partial
        if overwrite and folder.exists():
            shutil.rmtree(folder)
        # safetensors lets nobody but the owner read what it wrote; a server beside the trainer is another user.
        partial.chmod(0o755)
        for path in partial.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: Path, told: str) -> Iterator[None]:
    """Hold a lock file for this process, which the system lets go of when it ends, however it does.

    Where another process holds it, that is an error, told in these words.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(told) from error
        yield


def write_jsonl(path: Path, rows: Iterable[Any]) -> int:
    """Write dataclasses or mappings, one a line, atomically; return how many."""
    count = 0
    with replacing(path) as file:
        for row in rows:
            record = row if isinstance(row, Mapping) else asdict(row)
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def json_lines(path: Path, broken: list[str] | None = None) -> Iterator[tuple[int, Any]]:
    """(line number, value) of each non-blank line of a .jsonl or .jsonl.gz.

    A line that is no JSON raises with its number; where a list of `broken` ones is given, it is told there instead.
    """
    number = 0
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except (json.JSONDecodeError, UnicodeDecodeError) as error:
                    told = f"{path}:{number}: not JSON ({error})"
                    if broken is None:
                        raise UserError(f"{told}; mend or delete that line") from error
                    broken.append(told)
                else:
                    yield number, value
        except (gzip.BadGzipFile, EOFError) as error:
            raise UserError(f"{path}: damaged after line {number} ({error}); get the file again") from error
