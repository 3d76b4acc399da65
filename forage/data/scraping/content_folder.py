"""ContentFolder: fetched pages on disk, and a manifest with one row per URL, which tells how fetching it ended.

A manifest row's `cause` is 'ok', or why there is no page. Permanent causes are not retried by the next run:

    bad_url             not an absolute URL, or one with an impossible host or port, or with a user name
    bad_scheme          neither http nor https, also after a redirect
    private_address     the host, also after a redirect, is not on the internet
    robots              robots.txt forbids it
    not_found           404, 410
    client_error        another 4xx
    bad_status          a status that is no error and brings no page (206, 304, a redirect to nowhere)
    redirect_loop       a redirect back to a URL already visited
    too_many_redirects  more than MAX_REDIRECTS
    not_html            no content type of pages by its header, or PDF by its first bytes
    too_large           over max_bytes
    bad_encoding        a Content-Encoding other than gzip, or broken compressed data
    empty               no text in the page

Transient causes are retried by the next run; those marked * also up to `retries` times in the same run:

    rate_limited *        429 (and 408, 425)
    server_error *        5xx
    timeout *             connected, but no answer in time, or an answer that doesn't end
    broken_connection *   reset, closed, or not HTTP
    truncated *           the body ended before its announced length, or in the middle of its compression
    robots_unavailable *  robots.txt could not be fetched (5xx, 429, timeout ...), which forbids for now (RFC 9309)
    dns *                 the host's name has no address
    connect *             no connection: refused, unreachable, timed out, or not encrypted as https asks
    host_unreachable      not tried: UNREACHABLE_AFTER dns, connect or robots.txt failures came in a row
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from forage.files import append, filling_folder, replacing, typed_lines

RETRIED = {"rate_limited", "server_error", "timeout", "broken_connection", "truncated", "robots_unavailable"}
RETRIED |= {"dns", "connect"}
TRANSIENT = RETRIED | {"host_unreachable"}
HOST_FAILURES = {"dns", "connect"}


@dataclass(eq=False)
class Unfetchable(Exception):
    """Why a page could not be fetched: a cause, and what is known about the response."""

    cause: str
    detail: str
    status: int | None = None
    size: int = 0


def cause_of_status(status: int) -> str | None:
    """Why a response with this status is not a page; None if it is one."""
    if status in (200, 203):
        return None
    if status in (404, 410):
        return "not_found"
    if status in (408, 425, 429):
        return "rate_limited"
    if 400 <= status < 500:
        return "client_error"
    return "server_error" if 500 <= status < 600 else "bad_status"


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
    with filling_folder(path, *(folder.name for folder in path.glob("??")), way_out="--content-dir"):
        yield ContentFolder(path)


def _line(record: PageRecord) -> str:
    return json.dumps(asdict(record)) + "\n"  # ASCII, because a URL can contain half a surrogate pair
