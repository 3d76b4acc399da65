"""Hosts: politeness to each host, and what is known of each origin (scheme, host and port)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from forage.data.scraping.options import ScrapeOptions
from forage.data.scraping.robots import Robots


@dataclass
class Host:
    """When the next request to one host may start, and how many may run at once."""

    delay: float
    slots: asyncio.Semaphore
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    next_start: float = 0.0

    def slow_down(self, delay: float) -> None:
        """Keep at least this delay, counted from the last request."""
        if delay > self.delay:
            self.next_start += delay - self.delay
            self.delay = delay

    def hold(self, seconds: float) -> None:
        """Start no request to this host for this long."""
        self.next_start = max(self.next_start, time.monotonic() + seconds)

    @asynccontextmanager
    async def turn(self, in_flight: asyncio.Semaphore) -> AsyncIterator[None]:
        """Wait until politeness to this host and the limit over all hosts (`in_flight`) allow one more request."""
        async with self.slots:
            async with self.gate:
                while (wait := self.next_start - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                await in_flight.acquire()
                self.next_start = time.monotonic() + self.delay
            try:
                yield
            finally:
                in_flight.release()


@dataclass
class Origin:
    """One scheme, host and port: its addresses, its robots.txt, and how often it failed."""

    url: httpx.URL
    host: Host
    addresses: tuple[tuple[str, int], ...] = ()
    robots: Robots | None = None
    robots_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    failures: int = 0  # in a row, to connect or to get robots.txt


class Hosts:
    """All hosts and origins of a run, created on first use."""

    def __init__(self, options: ScrapeOptions) -> None:
        self._options = options
        self._hosts: dict[str, Host] = {}
        self._origins: dict[tuple[str, str, int], Origin] = {}

    def origin(self, url: httpx.URL) -> Origin:
        key = origin_key(url)
        name = key[1]
        if key not in self._origins:
            if name not in self._hosts:
                self._hosts[name] = Host(self._options.delay, asyncio.Semaphore(self._options.per_host))
            self._origins[key] = Origin(url, self._hosts[name])
        return self._origins[key]


def origin_key(url: httpx.URL) -> tuple[str, str, int]:
    """(scheme, host, port) of a URL."""
    return url.scheme, url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
