"""Fetcher: fetches the pages at untrusted URLs politely, keeps them as files, and records what became of each.

content_dir/manifest.jsonl                        one row per URL (PageRecord; content_folder.py lists the causes)
content_dir/<2 hex digits>/<32 hex digits>.html   bodies of the pages that ended 'ok', decompressed, as sent
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urljoin

import httpx
from protego import Protego

from forage.data.scraping.content_folder import (
    HOST_FAILURES,
    RETRIED,
    TRANSIENT,
    ContentFolder,
    PageRecord,
    Unfetchable,
    cause_of_status,
    opened,
)
from forage.data.scraping.hosts import Host, host_of, look_up, parse_url
from forage.data.scraping.options import ScrapeOptions
from forage.data.scraping.page_text import read_page
from forage.metrics import grouped

USER_AGENT = "forage (collects the pages of a question-answering data set)"
ROBOT = "forage"  # the name that rules of robots.txt are matched against
MAX_WAIT = 60.0  # seconds before a retry, or for a Retry-After or a Crawl-delay
MAX_REDIRECTS = 5
UNREACHABLE_AFTER = 5  # failures in a row to connect to a host or to get its robots.txt
PAGE_TYPES = {"text/html", "application/xhtml+xml", "text/plain"}
ROBOTS_BYTES = 512 * 1024  # RFC 9309 asks for at least 500 KiB; the rest is ignored
PIECE = 64 * 1024  # decompressed data at a time

ReadBody = Callable[[httpx.Response], Awaitable[bytes]]


@dataclass(frozen=True)
class _Answer:
    """A page, or a redirect to `location`."""

    url: httpx.URL
    status: int
    body: bytes = b""
    charset: str | None = None
    location: str | None = None


class Fetcher:
    """Fetches URLs. Its layers, from the outside in: attempts, redirects, robots.txt, turns, addresses, the exchange.

    It uses httpx's transport rather than its client, which stores cookies and parses every redirect's Location, where a
    bad one raises errors of its own.
    """

    def __init__(self, options: ScrapeOptions, transport: httpx.AsyncBaseTransport, folder: ContentFolder) -> None:
        self.options = options
        self.transport = transport
        self.folder = folder
        self.in_flight = asyncio.Semaphore(options.batch_size)
        self.hosts = defaultdict[str, Host](lambda: Host(options.delay, asyncio.Semaphore(options.per_host)))

    def _host(self, url: httpx.URL) -> Host:
        return self.hosts[host_of(url)]

    async def fetch(self, url: str) -> PageRecord:
        """The record of a URL, after as many attempts as are needed and allowed."""
        attempt, record = 0, None
        while True:
            try:
                return await self._attempt(url)
            except Unfetchable as failure:
                if record and failure.cause == "host_unreachable":  # given up meanwhile; the page's own cause says more
                    return record
                record = _record(url, failure.cause, failure.detail, failure.status, failure.size)
            if record.cause not in RETRIED or attempt == self.options.retries or self._given_up(parse_url(url)):
                return record
            await asyncio.sleep(min(MAX_WAIT, 2**attempt) * random.uniform(0.5, 1))
            attempt += 1

    def _given_up(self, url: httpx.URL) -> bool:
        return self._host(url).failures >= UNREACHABLE_AFTER

    async def _attempt(self, url: str) -> PageRecord:
        first = parse_url(url)
        answer = await self._follow(first, lambda response: read_page_body(response, self.options.max_bytes))
        # In a thread: parsing may take seconds, and other pages should not wait.
        page = await asyncio.to_thread(read_page, answer.body, answer.charset)
        if not page.blocks:
            raise Unfetchable("empty", "no text in the page", answer.status, len(answer.body))
        path = self.folder.store(url, answer.body)
        detail = "" if answer.url == first else f"redirected to {answer.url}"
        record = _record(url, "ok", detail, answer.status, len(answer.body))
        digest = hashlib.sha256(answer.body).hexdigest()
        return replace(record, sha256=digest, path=path, charset=answer.charset)

    async def _follow(self, url: httpx.URL, read: ReadBody, obey_robots: bool = True) -> _Answer:
        """The answer at the end of a URL's redirects."""
        seen: list[httpx.URL] = []
        while len(seen) <= MAX_REDIRECTS:
            seen.append(url)
            if obey_robots:
                await self._obey_robots(url)
            answer = await self._request(url, read)
            if answer.location is None:
                return answer
            url = _join(url, answer.location)
            if url in seen:
                raise Unfetchable("redirect_loop", "back to a URL already visited", answer.status)
        raise Unfetchable("too_many_redirects", f"more than {MAX_REDIRECTS}", answer.status)

    async def _obey_robots(self, url: httpx.URL) -> None:
        host, site = self._host(url), f"{url.scheme}://{url.netloc!r}"
        async with host.robots_lock:
            if site not in host.robots:
                host.robots[site] = rules = await self._fetch_robots(host, url)
                host.slow_down(min(rules.crawl_delay(ROBOT) or 0.0, MAX_WAIT))
        if not host.robots[site].can_fetch(str(url), ROBOT):
            raise Unfetchable("robots", "robots.txt forbids it")

    async def _fetch_robots(self, host: Host, url: httpx.URL) -> Protego:
        failures = host.failures
        try:
            robots = url.copy_with(raw_path=b"/robots.txt")
            read = partial(_read_body, most=ROBOTS_BYTES)  # whatever its content type
            answer = await self._follow(robots, read, obey_robots=False)
            text = answer.body[:ROBOTS_BYTES].decode("utf-8-sig", "replace")
        except Unfetchable as failure:
            if failure.cause == "host_unreachable":
                raise
            if failure.cause in TRANSIENT:
                host.failures = failures + 1
                cause = failure.cause if failure.cause in HOST_FAILURES else "robots_unavailable"
                raise Unfetchable(cause, f"robots.txt: {failure.cause}, {failure.detail}", failure.status) from failure
            text = ""  # 4xx, or redirects to nowhere: there are no rules (RFC 9309, 2.3.1.3)
        return Protego.parse(text)

    async def _request(self, url: httpx.URL, read: ReadBody) -> _Answer:
        """Make one request when its turn comes, unless the host was given up."""
        host = self._host(url)
        if self._given_up(url):
            raise Unfetchable("host_unreachable", f"given up after {host.failures} failures in a row")
        async with host.turn(self.in_flight):
            try:
                async with asyncio.timeout(4 * self.options.timeout):
                    return await self._connect(host, url, read)
            except TimeoutError as error:
                raise Unfetchable("timeout", f"not done in {4 * self.options.timeout:g} s") from error
            except Unfetchable as failure:
                host.failures += failure.cause in HOST_FAILURES
                raise

    async def _connect(self, host: Host, url: httpx.URL, read: ReadBody) -> _Answer:
        """The answer of the first of the host's addresses that accepts a connection."""
        for address, port in (await self._addresses(host, url))[:3]:
            try:
                return await self._exchange(host, url, address, port, read)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                refusal = error
            except httpx.TimeoutException as error:
                raise Unfetchable("timeout", f"no answer for {self.options.timeout:g} s") from error
            except httpx.TransportError as error:
                raise Unfetchable("broken_connection", str(error) or "the connection broke") from error
        host.addresses = ()
        raise Unfetchable("connect", str(refusal) or "timed out") from refusal

    async def _addresses(self, host: Host, url: httpx.URL) -> list[tuple[str, int]]:
        """Where a URL's host is.

        It is looked up once, and connections go to the addresses checked then. So a name server can't answer with a
        harmless address when checked and a local one when used.
        """
        name = host_of(url)
        if name in (resolve := self.options.resolve or {}):
            return [resolve[name]]
        port = url.port or (443 if url.scheme == "https" else 80)
        if not host.addresses:
            host.addresses = await look_up(name, port, self.options.timeout, self.options.allow_local)
        return [(address, port) for address in host.addresses]

    async def _exchange(self, host: Host, url: httpx.URL, address: str, port: int, read: ReadBody) -> _Answer:
        request = httpx.Request(
            "GET",
            url.copy_with(host=address, port=port),
            headers={
                "Host": url.netloc.decode("ascii"),
                "User-Agent": USER_AGENT,
                "Accept": "text/html, application/xhtml+xml, text/plain;q=0.8, */*;q=0.1",
                "Accept-Encoding": "gzip",
                "Connection": "close",
            },
            extensions={
                "timeout": httpx.Timeout(self.options.timeout).as_dict(),
                "sni_hostname": host_of(url),
            },
        )
        async with aclosing(await self.transport.handle_async_request(request)) as response:
            host.failures = 0
            return await self._answer(host, url, response, read)

    async def _answer(self, host: Host, url: httpx.URL, response: httpx.Response, read: ReadBody) -> _Answer:
        status = response.status_code
        if response.has_redirect_location:
            return _Answer(url, status, location=response.headers["location"])
        cause = cause_of_status(status)
        if cause in ("rate_limited", "server_error"):
            # All pages of the host wait; for a date, or whatever else says to wait, as long as for any.
            wait = response.headers.get("retry-after", "")
            host.hold(min(float(wait), MAX_WAIT) if wait.isdecimal() else MAX_WAIT * bool(wait))
        if cause:
            raise Unfetchable(cause, f"HTTP {status}", status)
        try:
            return _Answer(url, status, await read(response), response.charset_encoding)
        except Unfetchable as failure:
            failure.status = status
            raise


def _join(url: httpx.URL, location: str) -> httpx.URL:
    """Where a redirect leads."""
    try:
        return parse_url(urljoin(str(url), location))
    except ValueError as error:  # from urljoin, for brackets that hold no address
        raise Unfetchable("bad_url", f"redirect to {location!r}: {error}") from error


def _record(url: str, cause: str, detail: str, status: int | None, size: int) -> PageRecord:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return PageRecord(url, status, cause, detail[:300], size, sha256=None, path=None, charset=None, time=now)


# Response bodies of untrusted servers


async def read_page_body(response: httpx.Response, max_bytes: int) -> bytes:
    """The body of a response; Unfetchable if its type, size or first bytes say that it is not a page."""
    kind = re.split("[;,]", response.headers.get("content-type", ""))[0].strip().lower()
    if kind not in PAGE_TYPES:
        raise Unfetchable("not_html", kind or "no Content-Type")
    body = await _read_body(response, max_bytes)
    if len(body) > max_bytes:
        raise Unfetchable("too_large", f"over {max_bytes} bytes", size=len(body))
    if body[:1024].lstrip().startswith(b"%PDF"):
        raise Unfetchable("not_html", "PDF", size=len(body))
    return body


async def _read_body(response: httpx.Response, most: int) -> bytes:
    """The body, of which no more is read than it takes to see that it is larger than `most`."""
    body = bytearray()
    async for piece in _decoded(response):
        body += piece
        if len(body) > most:
            break
    return bytes(body)


async def _decoded(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body, decompressed in pieces, so that a gigabyte of zeros in a megabyte of gzip never exists as a whole."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip"):
        raise Unfetchable("bad_encoding", f"Content-Encoding {encoding}")
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS) if encoding == "gzip" else None
    try:
        async for data in response.aiter_raw():
            if not stream:
                yield data
                continue
            while data and not stream.eof:
                yield stream.decompress(data, PIECE)
                data = stream.unconsumed_tail
            if stream.eof:  # what follows, perhaps endlessly, is not part of it
                return
    except httpx.RemoteProtocolError as error:
        raise Unfetchable("truncated", str(error)) from error
    except zlib.error as error:
        raise Unfetchable("bad_encoding", f"broken compressed data: {error}") from error
    if stream:
        raise Unfetchable("truncated", "the gzip stream has no end")


# All pages of a list of URLs

OnPage = Callable[[PageRecord], None]


def scrape(
    urls: Iterable[str],
    content_dir: Path,
    options: ScrapeOptions,
    skip_existing: bool = True,
    on_page: OnPage = lambda record: None,
) -> dict[str, PageRecord]:
    """Fetch pages into content_dir; return the record of each URL, in the order of the URLs.

    If it is killed, the same call resumes. With skip_existing, settled pages are not requested again. on_page is called
    with each record, those of settled pages first.
    """
    options.check()
    wanted = list(dict.fromkeys(urls))
    with opened(content_dir) as folder:
        settled = {url for url in wanted if skip_existing and _is_settled(folder, url)}
        for url in wanted:
            if url in settled:
                on_page(folder.rows[url])
        try:
            asyncio.run(_fetch_all([url for url in wanted if url not in settled], folder, options, on_page))
        except BaseExceptionGroup as group:  # the error that stopped one worker; all others were cancelled
            raise group.exceptions[0] from None
        folder.compact(wanted)
        return {url: folder.rows[url] for url in wanted}


def _is_settled(folder: ContentFolder, url: str) -> bool:
    """Whether this run need not ask again."""
    record = folder.rows.get(url)
    if record is None:
        return False
    if record.cause == "ok":
        file = folder.path / (record.path or "")
        return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == record.sha256
    return record.cause not in TRANSIENT


async def _fetch_all(urls: list[str], folder: ContentFolder, options: ScrapeOptions, on_page: OnPage) -> None:
    """All hosts at the same time. Each has its own queue and workers, so that a slow host holds up no other."""

    async def work(queue: Iterator[str]) -> None:
        for url in queue:
            record = await fetcher.fetch(url)
            folder.add(record)
            on_page(record)

    # A kept connection could carry one host's request over TLS that was checked for another at the same address.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        httpx.AsyncHTTPTransport(trust_env=False, limits=limits) as transport,
        asyncio.TaskGroup() as group,
    ):
        fetcher = Fetcher(options, transport, folder)
        for of_host in grouped((_queue_of(url), url) for url in urls).values():
            queue = iter(of_host)
            for _ in range(min(options.per_host, len(of_host))):
                group.create_task(work(queue))


def _queue_of(url: str) -> str:
    """Its host; empty for what is not a URL."""
    try:
        return host_of(parse_url(url))
    except Unfetchable:
        return ""
