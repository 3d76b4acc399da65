"""Fetching: the pages of a list of URLs by one process, all hosts at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path

import httpx

from forage.data.scraping.addresses import parse_url
from forage.data.scraping.causes import Unfetchable
from forage.data.scraping.content_folder import PageFiles, PageRecord
from forage.data.scraping.fetcher import Fetcher
from forage.data.scraping.options import ScrapeOptions

OnRecord = Callable[[PageRecord], None]


def fetch_all(urls: list[str], content_dir: Path, options: ScrapeOptions, on_record: OnRecord) -> None:
    """Fetch pages into content_dir, and call on_record with what became of each, as they come."""
    try:
        asyncio.run(_fetch_all(urls, PageFiles(content_dir), options, on_record))
    except BaseExceptionGroup as group:  # the error that stopped one worker; all others were cancelled
        raise group.exceptions[0] from None


async def _fetch_all(urls: list[str], files: PageFiles, options: ScrapeOptions, on_record: OnRecord) -> None:
    """Each host has its own queue and workers, so that a slow host holds up no other."""
    queues: dict[str, deque[str]] = {}
    for url in urls:
        queues.setdefault(host_of(url), deque()).append(url)

    async def work(queue: deque[str]) -> None:
        while queue:
            on_record(await fetcher.fetch(queue.popleft()))

    # A kept connection could carry one host's request over TLS that was checked for another at the same address.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with (
        httpx.AsyncHTTPTransport(trust_env=False, limits=limits) as transport,
        asyncio.TaskGroup() as group,
    ):
        fetcher = Fetcher(options, transport, files)
        for queue in queues.values():
            for _ in range(min(options.per_host, len(queue))):
                group.create_task(work(queue))


def host_of(url: str) -> str:
    """Empty for what is not a URL."""
    try:
        return parse_url(url).raw_host.decode("ascii")
    except Unfetchable:
        return ""
