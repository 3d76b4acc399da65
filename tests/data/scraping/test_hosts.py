"""A host's turns, on a clock that only moves when someone sleeps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from forage.data.scraping import hosts
from forage.data.scraping.hosts import Host


@dataclass
class Clock:
    now: float = 100.0

    def read(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(hosts, "time", SimpleNamespace(monotonic=clock.read))
    monkeypatch.setattr(hosts, "asyncio", SimpleNamespace(sleep=clock.sleep))
    return clock


def starts(host, clock, requests):
    """When each request started, in seconds from now."""
    begin, started = clock.now, []

    async def request(in_flight):
        async with host.turn(in_flight):
            started.append(clock.now - begin)

    async def all_requests():
        in_flight = asyncio.Semaphore(8)
        await asyncio.gather(*(request(in_flight) for _ in range(requests)))

    asyncio.run(all_requests())
    return started


def test_requests_start_a_delay_apart(clock):
    host = Host(delay=0.5, slots=asyncio.Semaphore(2))
    assert starts(host, clock, 4) == [0, 0.5, 1, 1.5]
    assert starts(host, clock, 1) == [0.5]  # a new round goes on where the last one ended


def test_a_longer_delay_counts_from_the_last_request_and_a_shorter_one_changes_nothing(clock):
    host = Host(delay=0.5, slots=asyncio.Semaphore(2))
    starts(host, clock, 1)
    host.slow_down(2)
    host.slow_down(1)
    assert starts(host, clock, 3) == [2, 4, 6]


def test_a_hold_counts_from_now_and_never_shortens_another(clock):
    host = Host(delay=0, slots=asyncio.Semaphore(2))
    starts(host, clock, 1)
    host.hold(3)
    host.hold(1)
    assert starts(host, clock, 2) == [3, 3]
