"""ContentFolder: fetched pages on disk, and a manifest with one row per URL."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from forage.disk import end_of_lines
from forage.errors import UserError
from forage.files import json_lines, locked, replacing


@dataclass(frozen=True, slots=True)
class PageRecord:
    """What became of one URL: a row of the manifest."""

    url: str
    status: int | None  # of the last answer, if any
    cause: str
    detail: str
    bytes: int  # of the decompressed body, as far as it was read
    sha256: str | None
    path: str | None  # relative to content_dir
    charset: str | None  # from the header
    time: str  # UTC, when it was settled


class PageFiles:
    """Bodies of pages on disk. Several processes may write them at once, as each page has a file of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def store(self, url: str, body: bytes) -> str:
        """Save a page under a hash of its URL; no fsync, since a page lost in a power cut is fetched again."""
        name = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        folder = self.path / name[:2]
        partial = folder / f".{name}.part"
        with self._disk_errors():
            folder.mkdir(exist_ok=True)
            try:
                partial.write_bytes(body)
                partial.replace(folder / f"{name}.html")
            finally:
                partial.unlink(missing_ok=True)
        return f"{name[:2]}/{name}.html"

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self.path}: {error.strerror or error}; make room there or choose another --content-dir, then re-run "
                "the same command to resume"
            ) from error


class ContentFolder(PageFiles):
    """Pages and manifest on disk, held by one process; after a kill at any moment, the next run can resume."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.manifest = path / "manifest.jsonl"
        self.rows: dict[str, PageRecord] = {}
        with self._disk_errors(), ExitStack() as opened:
            path.mkdir(parents=True, exist_ok=True)
            message = f"{path}: another run is scraping into this folder; wait until it ends"
            opened.enter_context(locked(path / ".lock", message))
            for left_over in path.glob(f".{self.manifest.name}.*.part"):
                left_over.unlink()
            # Unbuffered: a row is one write, and closing writes nothing more to a full disk.
            self.file = opened.enter_context(self.manifest.open("ab+", buffering=0))
            self.file.truncate(end_of_lines(self.manifest))  # its writer may have been killed in the middle of a row
            for number, row in json_lines(self.manifest):
                record = self._row(row, number)
                self.rows[record.url] = record
            self.close = opened.pop_all().close

    def _row(self, row: object, number: int) -> PageRecord:
        names = [column.name for column in fields(PageRecord)]
        if not isinstance(row, dict) or not set(names) <= set(row):
            raise UserError(f"{self.manifest}:{number}: not a manifest row; delete that line")
        return PageRecord(**{name: row[name] for name in names})

    def add(self, record: PageRecord) -> None:
        line = _line(record)
        with self._disk_errors():
            if self.file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.rows[record.url] = record

    def compact(self, wanted: list[str]) -> None:
        """Rewrite the manifest with one row per URL: those of earlier runs first, then this run's in its order."""
        asked = set(wanted)
        order = [url for url in self.rows if url not in asked] + wanted
        with self._disk_errors(), replacing(self.manifest) as file:
            file.writelines(_line(self.rows[url]).decode("ascii") for url in order)


def _line(record: PageRecord) -> bytes:
    return json.dumps(asdict(record)).encode("ascii") + b"\n"  # ASCII, because a URL can contain half a surrogate pair
