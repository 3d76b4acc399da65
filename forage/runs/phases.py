"""Phases: stopwatches that say where a step's time goes."""

from __future__ import annotations

import threading
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
        self._running: dict[str, tuple[int, float, float]] = {}  # name: (how many, counted since, running since)
        self._lock = threading.Lock()  # the live table is drawn by another thread

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        beat()
        with self._lock:
            now = self._clock()
            count, since, began = self._running.pop(name, (0, now, now))
            self._running[name] = (count + 1, since, began)  # now() reports the one entered last
        try:
            yield
            self._synchronize()
        finally:
            with self._lock:
                count, since, began = self._running[name]
                if count > 1:
                    self._running[name] = (count - 1, since, began)
                else:
                    del self._running[name]
                    self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - since

    def take(self) -> dict[str, float]:
        """Seconds by name since the last take, including phases that still run; counting then starts from 0."""
        with self._lock:
            now, taken = self._clock(), self._seconds
            for name, (count, since, began) in self._running.items():
                taken[name] = taken.get(name, 0.0) + now - since
                self._running[name] = (count, now, began)
            self._seconds = {}
        return taken

    def now(self) -> tuple[str, float] | None:
        """The running phase that was entered last, and for how long it has been running."""
        with self._lock:
            if not self._running:
                return None
            name, (_, _, began) = next(reversed(self._running.items()))
            return name, self._clock() - began
