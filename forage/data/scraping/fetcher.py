"""Scraping: fetch pages of an untrusted list of URLs politely, keep them as files, and say what became of each.

    content_dir/manifest.jsonl                        one row per URL (PageRecord)
    content_dir/<2 hex digits>/<32 hex digits>.html   bodies of the pages that ended 'ok', decompressed, as sent

A row's `cause` is 'ok' or why there is no page. Permanent causes are not tried again by the next run:

    bad_url             no absolute URL, or with a host or port that can't be, or with a user name
    bad_scheme          neither http nor https, also after a redirect
    private_address     the host, also after a redirect, is not on the internet (permanent unless allow_local)
    robots              robots.txt forbids it
    not_found           404, 410
    client_error        another 4xx
    bad_status          an answer with no page in it that is no error either (206, 304, a redirect to nowhere)
    redirect_loop       a redirect back to where it came from
    too_many_redirects  more than max_redirects
    not_html            another type of content by its header, or PDF by its first bytes
    too_large           over max_bytes (permanent until max_bytes is raised)
    bad_encoding        a Content-Encoding other than gzip and deflate, or broken data in one
    empty               no text in it

Transient causes are tried again by the next run; those marked * also up to `retries` times in this one:

    rate_limited *        429 (and 408, 425)
    server_error *        5xx
    timeout *             connected, but no answer in time, or no end of it
    broken_connection *   reset, closed, or not HTTP
    truncated *           the body ended before its announced length, or in the middle of its compression
    robots_unavailable *  robots.txt could not be had (5xx, 429, time-out ...), which forbids for now (RFC 9309)
    dns *                 the host's name has no address
    connect *             no connection: refused, unreachable, timed out
    tls                   no encrypted connection, say by an expired certificate
    host_unreachable      not tried: `unreachable_after` dns, connect, tls or robots.txt failures came in a row

robots.txt is read by urllib.robotparser: the first rule that fits counts, and '*' inside a path is no wildcard.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import ssl
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urljoin
from urllib.robotparser import RobotFileParser

import httpx

from forage.data.scraping.addresses import Unfetchable, look_up, parse_url
from forage.data.scraping.content_folder import ContentFolder, PageRecord
from forage.data.scraping.options import ScrapeOptions, split_address
from forage.data.scraping.page_text import read_page

RETRIED = {"rate_limited", "server_error", "timeout", "broken_connection", "truncated", "robots_unavailable"}
RETRIED |= {"dns", "connect"}
TRANSIENT = RETRIED | {"tls", "host_unreachable"}
HOST_FAILURES = {"dns", "connect", "tls"}

PAGE_TYPES = {"text/html", "application/xhtml+xml", "text/plain"}
LOOKS_LIKE_HTML = re.compile(rb"<(?:!doctype html|html|head|body|title|meta|h1|p|div)\b", re.IGNORECASE)
REDIRECTS = {301, 302, 303, 307, 308}
ROBOTS_BYTES = 512 * 1024  # RFC 9309 asks for at least 500 KiB; the rest is left aside
PIECE = 64 * 1024  # of decompressed data at a time

ReadBody = Callable[[httpx.Response], Awaitable[bytes]]


def scrape(
    urls: Iterable[str],
    content_dir: Path,
    options: ScrapeOptions,
    skip_existing: bool = True,
    on_page: Callable[[PageRecord], None] | None = None,
) -> dict[str, PageRecord]:
    """Fetch pages into content_dir; the record of each URL, in the order of the URLs.

    Killed at any moment, it goes on where it stopped when it is called again. With skip_existing, what is settled is
    not asked for again. on_page is called with each record, those of settled pages first.
    """
    options.check()
    wanted = list(dict.fromkeys(urls))
    with closing(ContentFolder(content_dir)) as folder:
        to_fetch = []
        for url in wanted:
            known = folder.rows.get(url) if skip_existing else None
            if known is None or not _is_settled(known, content_dir, options):
                to_fetch.append(url)
            elif on_page:
                on_page(known)
        try:
            asyncio.run(_scrape(to_fetch, folder, options, on_page))
        except BaseExceptionGroup as group:  # what a worker could not go on from; all others were cancelled
            raise group.exceptions[0] from None
        folder.compact(wanted)
        return {url: folder.rows[url] for url in wanted}


def _is_settled(record: PageRecord, content_dir: Path, options: ScrapeOptions) -> bool:
    """Whether a run need not ask again."""
    if record.cause == "ok":
        file = content_dir / (record.path or "")
        return file.is_file() and file.stat().st_size == record.bytes
    if record.cause == "private_address":
        return not options.allow_local
    if record.cause == "too_large":
        return options.max_bytes < record.bytes
    return record.cause not in TRANSIENT


async def _scrape(
    urls: list[str],
    folder: ContentFolder,
    options: ScrapeOptions,
    on_page: Callable[[PageRecord], None] | None,
) -> None:
    """Each host has its own queue and workers, so that a slow host holds up nobody else."""
    queues: dict[str, deque[str]] = {}
    for url in urls:
        queues.setdefault(_host_of(url), deque()).append(url)

    async def work(queue: deque[str]) -> None:
        while queue:
            record = await fetcher.fetch(queue.popleft())
            folder.add(record)
            if on_page:
                on_page(record)

    # A kept connection could carry one host's request over TLS that was checked for another at the same address.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        httpx.AsyncHTTPTransport(trust_env=False, limits=limits) as transport,
        asyncio.TaskGroup() as group,
    ):
        fetcher = _Fetcher(options, transport, folder)
        for queue in queues.values():
            for _ in range(min(options.per_host, len(queue))):
                group.create_task(work(queue))


def _host_of(url: str) -> str:
    try:
        return parse_url(url).raw_host.decode("ascii")
    except Unfetchable:
        return ""


@dataclass
class _Host:
    """What politeness to one host needs."""

    delay: float
    slots: asyncio.Semaphore
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    next_start: float = 0.0

    def slow_down(self, delay: float) -> None:
        """Keep at least this delay, from the last request on."""
        if delay > self.delay:
            self.next_start += delay - self.delay
            self.delay = delay


@dataclass
class _Origin:
    """What is known of one scheme, host and port."""

    url: httpx.URL
    host: _Host
    addresses: tuple[tuple[str, int], ...] = ()
    robots: RobotFileParser | None = None
    robots_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    failures: int = 0  # to connect or to get robots.txt, in a row


@dataclass(frozen=True)
class _Answer:
    """A page, or a redirect to `location`."""

    url: httpx.URL
    status: int
    body: bytes = b""
    charset: str | None = None
    location: str | None = None


class _Fetcher:
    """Fetches URLs. From the outside in: attempts, redirects, robots.txt, turns, addresses, the exchange.

    It works on httpx's transport, because httpx's client stores cookies and parses every redirect's Location, where
    a bad one raises errors of its own.
    """

    def __init__(self, options: ScrapeOptions, transport: httpx.AsyncBaseTransport, folder: ContentFolder) -> None:
        self.options = options
        self.transport = transport
        self.folder = folder
        self.in_flight = asyncio.Semaphore(options.batch_size)
        self.hosts: dict[str, _Host] = {}
        self.origins: dict[tuple[str, str, int], _Origin] = {}

    async def fetch(self, url: str) -> PageRecord:
        """The record of a URL, after as many attempts as it takes and may take."""
        attempt, record = 0, None
        while True:
            try:
                return await self._attempt(url)
            except Unfetchable as failure:
                if record and failure.cause == "host_unreachable":  # by now; this page's own cause says more
                    return record
                record = _record(url, failure.cause, failure.detail, failure.status, failure.size)
            if record.cause not in RETRIED or attempt == self.options.retries or self._given_up(url):
                return record
            await asyncio.sleep(min(self.options.max_wait, 2**attempt) * random.uniform(0.5, 1))
            attempt += 1

    def _given_up(self, url: str) -> bool:
        return self._origin(parse_url(url)).failures >= self.options.unreachable_after

    async def _attempt(self, url: str) -> PageRecord:
        first = parse_url(url)
        answer = await self._follow(first, self._read_page)
        # Parsing takes up to seconds, in which the other pages go on.
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
        try:
            while len(seen) <= self.options.max_redirects:
                seen.append(url)
                if obey_robots:
                    await self._obey_robots(url)
                answer = await self._request(url, read)
                if answer.location is None:
                    return answer
                url = _join(url, answer.location)
                if url in seen:
                    raise Unfetchable("redirect_loop", "back to where it came from", answer.status)
        except Unfetchable as failure:
            if url != seen[0]:
                failure.detail += f" (redirected to {url})"
            raise
        raise Unfetchable("too_many_redirects", f"more than {self.options.max_redirects}", answer.status)

    async def _obey_robots(self, url: httpx.URL) -> None:
        origin = self._origin(url)
        async with origin.robots_lock:
            if origin.robots is None:
                origin.robots = await self._fetch_robots(origin)
                asked = int(origin.robots.crawl_delay(self.options.user_agent) or 0)
                origin.host.slow_down(min(asked, self.options.max_wait))
        if not origin.robots.can_fetch(self.options.user_agent, str(url)):
            raise Unfetchable("robots", "robots.txt forbids it")

    async def _fetch_robots(self, origin: _Origin) -> RobotFileParser:
        failures = origin.failures
        try:
            answer = await self._follow(origin.url.copy_with(raw_path=b"/robots.txt"), _read_robots, obey_robots=False)
            text = answer.body.decode("utf-8-sig", "replace")
        except Unfetchable as failure:
            if failure.cause == "host_unreachable":
                raise
            if failure.cause in TRANSIENT:
                origin.failures = failures + 1
                cause = failure.cause if failure.cause in HOST_FAILURES else "robots_unavailable"
                raise Unfetchable(cause, f"robots.txt: {failure.cause}, {failure.detail}", failure.status) from failure
            text = ""  # 4xx, or redirects to nowhere: there are no rules (RFC 9309, 2.3.1.3)
        robots = RobotFileParser()
        try:
            robots.parse(text.splitlines())
        except ValueError as error:  # urllib.robotparser's way with '//[' and with a delay of '²'
            origin.failures = failures + 1
            raise Unfetchable("robots_unavailable", f"robots.txt can't be read: {error}") from error
        return robots

    async def _request(self, url: httpx.URL, read: ReadBody) -> _Answer:
        """One request, when it is its turn and if the host was not given up."""
        origin = self._origin(url)
        if origin.failures >= self.options.unreachable_after:
            raise Unfetchable("host_unreachable", f"given up after {origin.failures} failures in a row")
        async with self._turn(origin.host):
            try:
                async with asyncio.timeout(self.options.page_timeout):
                    return await self._connected(origin, url, read)
            except TimeoutError as error:
                raise Unfetchable("timeout", f"not done in {self.options.page_timeout:g} s") from error
            except Unfetchable as failure:
                origin.failures += failure.cause in HOST_FAILURES
                raise

    @asynccontextmanager
    async def _turn(self, host: _Host) -> AsyncIterator[None]:
        """Wait until one more request to the host is polite."""
        async with host.slots:
            async with host.gate:
                while (wait := host.next_start - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                await self.in_flight.acquire()
                host.next_start = time.monotonic() + host.delay
            try:
                yield
            finally:
                self.in_flight.release()

    async def _connected(self, origin: _Origin, url: httpx.URL, read: ReadBody) -> _Answer:
        """The answer of the first of the host's addresses that takes a connection.

        A host is looked up once and its connections go to what was checked then: an answer of the name server that
        is harmless when checked and local when used can't come between.
        """
        if not origin.addresses:
            origin.addresses = await self._addresses(url)
        for address in origin.addresses[:3]:
            try:
                return await self._exchange(origin, url, address, read)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                refusal = error
            except httpx.TimeoutException as error:
                raise Unfetchable("timeout", f"no answer for {self.options.timeout:g} s") from error
            except httpx.TransportError as error:
                raise Unfetchable("broken_connection", str(error) or "the connection broke off") from error
        origin.addresses = ()
        raise Unfetchable("tls" if _is_tls(refusal) else "connect", str(refusal) or "timed out") from refusal

    async def _addresses(self, url: httpx.URL) -> tuple[tuple[str, int], ...]:
        _, host, port = _origin_of(url)
        if host in self.options.resolve:
            return (split_address(self.options.resolve[host]),)
        found = await look_up(host, port, self.options.timeout, self.options.allow_local)
        return tuple((address, port) for address in found)

    async def _exchange(self, origin: _Origin, url: httpx.URL, address: tuple[str, int], read: ReadBody) -> _Answer:
        request = httpx.Request(
            "GET",
            url.copy_with(host=address[0], port=address[1]),
            headers={
                "Host": url.netloc.decode("ascii"),
                "User-Agent": self.options.user_agent,
                "Accept": "text/html, application/xhtml+xml, text/plain;q=0.8, */*;q=0.1",
                "Accept-Encoding": "gzip, deflate",
                "Connection": "close",
            },
            extensions={
                "timeout": httpx.Timeout(self.options.timeout).as_dict(),
                "sni_hostname": url.raw_host.decode("ascii"),
            },
        )
        async with aclosing(await self.transport.handle_async_request(request)) as response:
            origin.failures = 0
            return await self._answer(origin.host, url, response, read)

    async def _answer(self, host: _Host, url: httpx.URL, response: httpx.Response, read: ReadBody) -> _Answer:
        status = response.status_code
        if status in REDIRECTS and "location" in response.headers:
            return _Answer(url, status, location=response.headers["location"])
        cause = _cause_of(status)
        if cause in ("rate_limited", "server_error"):
            wait = min(_retry_after(response.headers.get("retry-after", "")), self.options.max_wait)
            host.next_start = max(host.next_start, time.monotonic() + wait)  # for all pages of the host
        if cause:
            raise Unfetchable(cause, f"HTTP {status}", status)
        try:
            return _Answer(url, status, await read(response), response.charset_encoding)
        except Unfetchable as failure:
            failure.status = status
            raise

    async def _read_page(self, response: httpx.Response) -> bytes:
        """The body of an answer that is a page by its type, its size and its first bytes."""
        kind = re.split("[;,]", response.headers.get("content-type", ""))[0].strip().lower()
        if kind and kind not in PAGE_TYPES:
            raise Unfetchable("not_html", kind)
        body = bytearray()
        async for piece in _decoded(response):
            body += piece
            if len(body) > self.options.max_bytes:
                raise Unfetchable("too_large", f"over {self.options.max_bytes} bytes", size=len(body))
        head = bytes(body[:1024])
        if head.lstrip().startswith(b"%PDF"):
            raise Unfetchable("not_html", "PDF", size=len(body))
        if head and not kind and not LOOKS_LIKE_HTML.search(head):
            raise Unfetchable("not_html", "no Content-Type, and no HTML by its looks", size=len(body))
        return bytes(body)

    def _origin(self, url: httpx.URL) -> _Origin:
        key = _origin_of(url)
        if key not in self.origins:
            if key[1] not in self.hosts:
                self.hosts[key[1]] = _Host(self.options.delay, asyncio.Semaphore(self.options.per_host))
            self.origins[key] = _Origin(url, self.hosts[key[1]])
        return self.origins[key]


async def _read_robots(response: httpx.Response) -> bytes:
    body = bytearray()
    async for piece in _decoded(response):
        body += piece
        if len(body) >= ROBOTS_BYTES:
            break
    return bytes(body[:ROBOTS_BYTES])


async def _decoded(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body, decompressed in pieces, so that a gigabyte of zeros in a megabyte of gzip never exists as a whole."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise Unfetchable("bad_encoding", f"Content-Encoding {encoding}")
    inflater = None if encoding in ("identity", "") else _Inflater()
    try:
        async for data in response.aiter_raw():
            for piece in inflater.feed(data) if inflater else (data,):
                yield piece
            if inflater and inflater.ended:  # whatever follows, maybe without end, is no part of it
                return
    except httpx.RemoteProtocolError as error:
        raise Unfetchable("truncated", str(error)) from error
    if inflater and inflater.started:
        raise Unfetchable("truncated", f"the {encoding} stream has no end")


class _Inflater:
    """gzip or zlib, told apart by their first bytes, or the bare deflate that some servers send as 'deflate'."""

    def __init__(self) -> None:
        self.stream = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)
        self.started = False

    @property
    def ended(self) -> bool:
        return self.stream.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            piece = self._inflate(data)
            while piece:
                yield piece
                piece = self.stream.decompress(self.stream.unconsumed_tail, PIECE)
        except zlib.error as error:
            raise Unfetchable("bad_encoding", f"broken compressed data: {error}") from error

    def _inflate(self, data: bytes) -> bytes:
        first, self.started = not self.started, True
        try:
            return self.stream.decompress(data, PIECE)
        except zlib.error:
            if not first:
                raise
            self.stream = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
            return self.stream.decompress(data, PIECE)


def _cause_of(status: int) -> str | None:
    """Why an answer with this status is no page; None if it is one."""
    if status in (200, 203):
        return None
    if status in (404, 410):
        return "not_found"
    if status in (408, 425, 429):
        return "rate_limited"
    if 400 <= status < 500:
        return "client_error"
    return "server_error" if 500 <= status < 600 else "bad_status"


def _retry_after(value: str) -> float:
    """Seconds of a Retry-After, which is a number or a date; 0 where there is none that can be read."""
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    try:
        at = parsedate_to_datetime(value)
        return at.replace(tzinfo=at.tzinfo or UTC).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0


def _join(url: httpx.URL, location: str) -> httpx.URL:
    """Where a redirect leads."""
    try:
        return parse_url(urljoin(str(url), location))
    except ValueError as error:  # urljoin's, of brackets that hold no address
        raise Unfetchable("bad_url", f"redirect to {location!r}: {error}") from error
    except Unfetchable as failure:
        failure.detail = f"redirect to {location!r}: {failure.detail}"
        raise


def _origin_of(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)


def _is_tls(error: BaseException | None) -> bool:
    """Whether an encrypted connection failed at its encryption; httpx says so only in the chain of causes."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None


def _record(url: str, cause: str, detail: str, status: int | None, size: int) -> PageRecord:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return PageRecord(url, status, cause, detail[:300], size, sha256=None, path=None, charset=None, time=now)
