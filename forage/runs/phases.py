"""Phases: stopwatches that say where a step's time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forage.heartbeat import beat


class Phases:
    """Stopwatches by name. Overlapping phases of one name, nested or in asyncio tasks, count once.

    Example: phases("rollout") from second 0 to 10, within it phases("search") from 2 to 5 and another from 4 to 8, give
    {"rollout": 10, "search": 6}.

    `synchronize` is called before a phase's end is measured, to wait for work that a GPU still does for it; else that
    would count as the next phase's. After an error nothing is waited for.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, synchronize: Callable[[], None] = lambda: None
    ) -> None:
        self._clock, self._synchronize = clock, synchronize
        self._seconds: dict[str, float] = {}
        self._running: dict[str, tuple[int, float]] = {}  # name: (how many, counted since)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        beat()
        count, since = self._running.get(name, (0, self._clock()))
        self._running[name] = count + 1, since
        try:
            yield
            self._synchronize()
        finally:
            count, since = self._running.pop(name)
            if count > 1:
                self._running[name] = count - 1, since
            else:
                self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - since

    def take(self) -> dict[str, float]:
        """Seconds by name since the last take, including phases that still run; counting then starts from 0."""
        now, taken = self._clock(), self._seconds
        for name, (count, since) in self._running.items():
            taken[name] = taken.get(name, 0.0) + now - since
            self._running[name] = count, now
        self._seconds = {}
        return taken
