"""Files written whole or not at all, locks, and JSON Lines."""

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
from forage.text import encodable, encodable_values


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Write a text file so that neither a reader nor a crash sees half of it: temporary name, fsync, rename."""
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
    """Like `replacing`, for a folder: fill the yielded one, and it takes its final name if nothing went wrong."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield partial
        if overwrite and folder.exists():
            shutil.rmtree(folder)
        # safetensors writes files that only their owner can read; a server beside the trainer runs as another user.
        partial.chmod(0o755)
        for path in partial.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: Path, message: str) -> Iterator[None]:
    """Hold a lock file; the system releases it when this process ends, however it ends.

    If another process holds it, UserError(message).
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(message) from error
        yield


def write_jsonl(path: Path, rows: Iterable[Any]) -> int:
    """Write dataclasses or mappings atomically, one per line; return how many."""
    count = 0
    with replacing(path) as file:
        for row in rows:
            record = row if isinstance(row, Mapping) else asdict(row)
            file.write(encodable(json.dumps(record, ensure_ascii=False)) + "\n")
            count += 1
    return count


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
                    value = json.loads(line)
                    if b"\\ud" in line.lower():  # perhaps half of an emoji, which no file could be written with
                        value = encodable_values(value)
                except (ValueError, RecursionError) as error:  # also a number of 5,000 digits, and 5,000 brackets
                    problem = f"{path}:{number}: not JSON ({error})"
                    if broken is None:
                        raise UserError(f"{problem}; fix or delete that line") from error
                    broken.append(problem)
                else:
                    yield number, value
        except (gzip.BadGzipFile, EOFError) as error:
            raise UserError(f"{path}: damaged after line {number} ({error}); download it again") from error
