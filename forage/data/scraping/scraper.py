"""Scraping: fetch the pages of a list of URLs, keep them as files, and record what became of each.

content_dir/manifest.jsonl                        one row per URL (PageRecord; content_folder.py lists the causes)
content_dir/<2 hex digits>/<32 hex digits>.html   bodies of the pages that ended 'ok', decompressed, as sent
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx

from forage.data.scraping.content_folder import TRANSIENT, ContentFolder, PageRecord, Unfetchable, opened
from forage.data.scraping.fetcher import Fetcher
from forage.data.scraping.hosts import host_of, parse_url
from forage.data.scraping.options import ScrapeOptions

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
    queues: dict[str, deque[str]] = {}
    for url in urls:
        queues.setdefault(_queue_of(url), deque()).append(url)

    async def work(queue: deque[str]) -> None:
        while queue:
            record = await fetcher.fetch(queue.popleft())
            folder.add(record)
            on_page(record)

    # A kept connection could carry one host's request over TLS that was checked for another at the same address.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        httpx.AsyncHTTPTransport(trust_env=False, limits=limits) as transport,
        asyncio.TaskGroup() as group,
    ):
        fetcher = Fetcher(options, transport, folder)
        for queue in queues.values():
            for _ in range(min(options.per_host, len(queue))):
                group.create_task(work(queue))


def _queue_of(url: str) -> str:
    """Its host; empty for what is not a URL."""
    try:
        return host_of(parse_url(url))
    except Unfetchable:
        return ""
