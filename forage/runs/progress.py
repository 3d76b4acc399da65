"""TrainView: how far training is, as a live table in a terminal and a line a step; Phases: where its time goes."""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from forage.heartbeat import beat
from forage.runs.stats import NO_PHASES, StepStats

LAST = 20  # steps whose median tells the time that is left: evaluations, which not all have, don't move it
TREND = 5  # steps that are compared with as many before them


class Phases:
    """A stop-watch by name. Time counts once for a name however many of it run at once, nested or in asyncio tasks.

    Example: phases("rollout") from second 0 to 10, in it phases("search") from 2 to 5 and another from 4 to 8, give
    {"rollout": 10, "search": 6}.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._running: dict[str, tuple[int, float, float]] = {}  # name: how many, since when counted, since when at all
        self._lock = threading.Lock()  # the live table is drawn by another thread

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        beat()
        with self._lock:
            now = self._clock()
            count, since, began = self._running.pop(name, (0, now, now))
            self._running[name] = (count + 1, since, began)  # the last one in is what runs now
        try:
            yield
        finally:
            with self._lock:
                count, since, began = self._running[name]
                if count > 1:
                    self._running[name] = (count - 1, since, began)
                else:
                    del self._running[name]
                    self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - since

    def take(self) -> dict[str, float]:
        """Seconds by name since the last take, of what still runs so far; then counting starts anew."""
        with self._lock:
            now, taken = self._clock(), self._seconds
            for name, (count, since, began) in self._running.items():
                taken[name] = taken.get(name, 0.0) + now - since
                self._running[name] = (count, now, began)
            self._seconds = {}
        return taken

    def now(self) -> tuple[str, float] | None:
        """The phase that was entered last of those that run, and for how long it has."""
        with self._lock:
            if not self._running:
                return None
            name, (_, _, began) = next(reversed(self._running.items()))
            return name, self._clock() - began


class TrainView:
    """Says where training is. The live table is taken away while a rollout shows its own.

    with TrainView(last=500, phases=phases, history=read_stats(run_dir)) as view:
        view.began(step)
        with phases("rollout"), view.paused():
            ...  # RolloutView
        view.ended(stats)
    """

    def __init__(
        self, last: int, phases: Phases, history: Sequence[StepStats] = (), console: Console | None = None
    ) -> None:
        self.last, self.phases, self.history = last, phases, list(history)
        self.step: int | None = None
        self._began = time.monotonic()
        self._console = console or Console()
        self._is_live = sys.stdout.isatty() if console is None else console.is_terminal
        self._live: Live | None = None

    def __enter__(self) -> TrainView:
        self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hide()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to another live display."""
        self._hide()
        try:
            yield
        finally:
            self._show()

    def began(self, step: int) -> None:
        """This step runs now."""
        self.step, self._began = step, time.monotonic()

    def ended(self, stats: StepStats) -> None:
        """A step's line, which stays, and its warnings."""
        self.history.append(stats)
        lines = [self.line(), *(f"note: {note}" for note in stats.notes)]
        for line in lines:
            if self._is_live:
                self._console.print(Text(line))
            else:
                print(line, flush=True)

    def line(self) -> str:
        """Example: step 12 of 500: overall 0.512 (+0.031), mrr 0.400 (-0.002); 34 s (rollout 20, backward 9); 4 h 37
        min left."""
        stats = self.history[-1]
        rewards = ", ".join(f"{name} {value:.3f}{_signed(trend)}" for name, value, trend in reward_trends(self.history))
        parts = [f"step {stats.step} of {self.last}: {rewards}"]
        if stats.seconds:
            phases_s = {name: seconds for name, seconds in stats.seconds.items() if name not in NO_PHASES}
            longest = sorted(phases_s.items(), key=lambda item: -item[1])[:3]
            phases = ", ".join(f"{name} {seconds:.0f}" for name, seconds in longest)
            parts.append(f"{step_seconds(stats):.0f} s ({phases})")
        left = seconds_left(self.history, self.last)
        if left:
            parts.append(f"{duration(left)} left")
        return "; ".join(parts)

    def table(self) -> Table:
        """What is shown live."""
        table = Table("", "", show_header=False, title="training")
        for name, value in self.figures().items():
            table.add_row(Text(name), Text(value))
        return table

    def figures(self) -> dict[str, str]:
        """What the table says, by name."""
        shown = {"step": f"{self.step} of {self.last}"} if self.step is not None else {}
        now = self.phases.now()
        if now:
            shown["now"] = f"{now[0]}, {duration(now[1])}"
        left = seconds_left(self.history, self.last)
        if left is not None:
            running = self.step is not None and self.step > self.history[-1].step
            left = max(0.0, left - (time.monotonic() - self._began)) if running else left
            shown["left"] = f"{duration(left)}, by the last steps' median of {duration(_median(self.history))}"
        for name, value, trend in reward_trends(self.history):
            shown[name] = f"{value:.3f}{_signed(trend)}"
        return shown

    def _show(self) -> None:
        if self._is_live:
            self._live = Live(get_renderable=self.table, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def _hide(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None


def step_seconds(stats: StepStats) -> float:
    """What the step took: its own figure, or where that lacks the sum of its phases."""
    return stats.seconds.get("step", sum(s for name, s in stats.seconds.items() if name not in NO_PHASES))


def seconds_left(history: Sequence[StepStats], last: int) -> float | None:
    """Steps that are left, at the median of the last ones; None before there is any.

    Example: steps 0 to 2 took 10, 12 and 50 seconds, so 7 more up to step 9 take 84.
    """
    if not history:
        return None
    return max(0, last - history[-1].step) * _median(history)


def _median(history: Sequence[StepStats]) -> float:
    return statistics.median(step_seconds(stats) for stats in history[-LAST:])


def reward_trends(history: Sequence[StepStats]) -> list[tuple[str, float, float | None]]:
    """(name, last mean, trend) of each reward. The trend is the mean of the last 5 steps less that of the 5 before,
    of fewer where there are not so many, None at the first step.

    Example: means .2, .4, .6, .8 give a trend of .7 - .3 = .4.
    """
    if not history:
        return []
    reach = min(TREND, len(history) // 2)
    trends: list[tuple[str, float, float | None]] = []
    for name, summary in history[-1].summary.items():
        means = [stats.summary[name]["mean"] for stats in history[-2 * reach :] if name in stats.summary]
        known = reach > 0 and len(means) == 2 * reach
        trend = statistics.fmean(means[reach:]) - statistics.fmean(means[:reach]) if known else None
        trends.append((name, summary["mean"], trend))
    return trends


def _signed(trend: float | None) -> str:
    return "" if trend is None else f" ({trend:+.3f})"


def duration(seconds: float) -> str:
    """The two largest units. Example: 59.4, 61 and 7300 are 59 s, 1 min 1 s and 2 h 1 min."""
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
