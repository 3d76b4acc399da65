"""ContentFolder: fetched pages on disk, and a manifest with one row per URL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from forage.files import append, clear_half_written, locked, make_folder, replacing, typed_lines


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
        append(self.manifest, b"")  # whose writer may have been killed in the middle of a row
        for record in typed_lines(PageRecord, self.manifest, "a manifest row", "delete that line"):
            self.rows[record.url] = record

    def store(self, url: str, body: bytes) -> str:
        """Save a page under a hash of its URL."""
        name = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        with replacing(self.path / name[:2] / f"{name}.html") as file:
            file.buffer.write(body)
        return f"{name[:2]}/{name}.html"

    def add(self, record: PageRecord) -> None:
        append(self.manifest, _line(record).encode())
        self.rows[record.url] = record

    def compact(self, wanted: list[str]) -> None:
        """Rewrite the manifest with one row per URL: those of earlier runs first, then this run's in its order."""
        asked = set(wanted)
        order = [url for url in self.rows if url not in asked] + wanted
        with replacing(self.manifest) as file:
            file.writelines(map(_line, map(self.rows.__getitem__, order)))


@contextmanager
def opened(path: Path) -> Iterator[ContentFolder]:
    """The folder, held by this process alone."""
    make_folder(path)
    with locked(path / ".lock", f"{path}: another run is scraping into this folder; wait until it ends"):
        for folder in (path, *path.glob("??")):
            clear_half_written(folder)
        yield ContentFolder(path)


def _line(record: PageRecord) -> str:
    return json.dumps(asdict(record)) + "\n"  # ASCII, because a URL can contain half a surrogate pair
