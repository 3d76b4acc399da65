"""Progress: figures that change, as a line every 10 seconds.

The one printer of progress: of what is counted while data is made, and of episodes while they are played.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Self, TypeVar

from forage.text import one_line

T = TypeVar("T")
LOG_EVERY = 10.0  # seconds between lines


class Progress:
    """Shows its figures while it is entered; `changed` tells it that there are others. Unless `shown`, it is silent."""

    def __init__(self, title: str, total: int, done: int = 0, *, shown: bool = True) -> None:
        self.title, self.total, self.done, self.shown = title, total, done, shown
        self.started = self._logged = time.monotonic()

    def figures(self) -> Mapping[str, str]:
        """What a line shows: values by name."""
        return {}

    def complete(self) -> bool:
        """Whether all is done, so that only the last line is still to come; more may follow, as of spare questions."""
        return self.done == self.total

    def ends_with_line(self) -> bool:
        """Whether there is a last line."""
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.shown and kind is None and self.ends_with_line():
            print(self.line(), flush=True)

    def changed(self) -> None:
        """There is a line if the last one is long enough ago."""
        if self.shown and time.monotonic() - self._logged > LOG_EVERY and not self.complete():
            self._logged = time.monotonic()
            print(self.line(), flush=True)

    def line(self) -> str:
        return one_line(f"{self.title}: " + "; ".join(f"{name} {value}" for name, value in self.figures().items()))


class Counting(Progress):
    """A known number of things, of which some may be done: `with Counting("pages", 300) as bar: bar.update()`."""

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        super().__init__(title, total, done, shown=total > 0)
        self._before = done

    def update(self, more: int = 1) -> None:
        self.done += more
        self.changed()

    def figures(self) -> Mapping[str, str]:
        """Example: {"done": "120 of 300", "left": "1 min 30 s"}."""
        spent, new = time.monotonic() - self.started, self.done - self._before
        left = {"left": duration(spent / new * (self.total - self.done))} if new else {}
        return {"done": f"{self.done:,} of {self.total:,}"} | left

    def ends_with_line(self) -> bool:
        """What is soon done leaves no line."""
        return time.monotonic() - self.started > LOG_EVERY


def counted(title: str, things: Collection[T]) -> Iterator[T]:
    """The things, one after the other, while their number is shown."""
    with Counting(title, len(things)) as bar:
        for thing in things:
            yield thing
            bar.update()


def duration(seconds: float) -> str:
    """Seconds in their two largest units. Examples: 59.4, 61 and 7300 are 59 s, 1 min 1 s and 2 h 1 min."""
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
