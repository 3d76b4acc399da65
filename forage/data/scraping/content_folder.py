"""ContentFolder: fetched pages on disk, and a manifest with one row per URL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from forage.errors import UserError
from forage.files import end_of_lines, json_lines, locked, replacing


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


class ContentFolder:
    """Pages and manifest on disk; after a kill at any moment, the next run can resume."""

    def __init__(self, path: Path) -> None:
        self.path, self.manifest = path, path / "manifest.jsonl"
        self.rows: dict[str, PageRecord] = {}
        if self.manifest.exists():
            end = end_of_lines(self.manifest)  # its writer may have been killed in the middle of a row
            with self.manifest.open("rb+") as file:
                file.truncate(end)
            for number, row in json_lines(self.manifest):
                try:
                    record = PageRecord(**row)
                except TypeError as error:
                    raise UserError(f"{self.manifest}:{number}: not a manifest row; delete that line") from error
                self.rows[record.url] = record

    def store(self, url: str, body: bytes) -> str:
        """Save a page under a hash of its URL; no fsync, since a page lost in a power cut is fetched again."""
        name = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        partial = self.path / name[:2] / f".{name}.part"
        with disk_errors(self.path):
            partial.parent.mkdir(exist_ok=True)
            try:
                partial.write_bytes(body)
                partial.replace(partial.with_name(f"{name}.html"))
            finally:
                partial.unlink(missing_ok=True)
        return f"{name[:2]}/{name}.html"

    def add(self, record: PageRecord) -> None:
        with disk_errors(self.path), self.manifest.open("a", encoding="ascii") as file:
            file.write(_line(record))
        self.rows[record.url] = record

    def compact(self, wanted: list[str]) -> None:
        """Rewrite the manifest with one row per URL: those of earlier runs first, then this run's in its order."""
        asked = set(wanted)
        order = [url for url in self.rows if url not in asked] + wanted
        with disk_errors(self.path), replacing(self.manifest) as file:
            file.writelines(_line(self.rows[url]) for url in order)


@contextmanager
def opened(path: Path) -> Iterator[ContentFolder]:
    """The folder, held by this process alone."""
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    with locked(path / ".lock", f"{path}: another run is scraping into this folder; wait until it ends"):
        for left_over in path.glob(".manifest.jsonl.*.part"):
            left_over.unlink()
        yield ContentFolder(path)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror or error}; make room there or choose another --content-dir, then re-run the same "
            "command to resume"
        ) from error


def _line(record: PageRecord) -> str:
    return json.dumps(asdict(record)) + "\n"  # ASCII, because a URL can contain half a surrogate pair
