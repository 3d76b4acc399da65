"""Waiting: which side of a run waits for the other, and what to do about it. Pure functions of the statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forage.runs.stats import StepStats, step_seconds

LAST = 20  # steps that are looked at: advice is about the run as it is now
MUCH = 0.2  # of the time: below that nothing is said


@dataclass(frozen=True)
class Shares:
    """Shares of the time."""

    trainer: float
    """That the trainer waits for episodes."""
    workers: float
    """That a worker waits for the trainer, as far ahead of it as staleness allows."""
    tail: float
    """That a worker waits for others, which play all that is left of a step."""
    count: int
    """Number of workers."""


def shares(history: Sequence[StepStats]) -> Shares | None:
    """Over the last steps but never the run's first, in which workers start; None where no worker plays.

    Example: two steps of 10 s, in which the trainer waited 6 s and 4 s, one of two workers 4 s and 0 s for it: the
    trainer .5, workers .1.
    """
    steps = [stats for stats in history[1:][-LAST:] if "rollout_wait" in stats.seconds and stats.workers]
    total = math.fsum(step_seconds(stats) for stats in steps)
    if not total:
        return None
    played = math.fsum(len(stats.workers) * step_seconds(stats) for stats in steps)

    def share(name: str, of: float) -> float:
        return min(1.0, math.fsum(stats.seconds.get(name, 0.0) for stats in steps) / of)

    return Shares(
        share("rollout_wait", total), share("backpressure", played), share("tail", played), len(steps[-1].workers)
    )


def advice(found: Shares | None) -> str:
    """One sentence; empty where nobody waits much.

    Example: the trainer waits 62 % of the time for episodes: add a rollout worker.
    """
    if found is None:
        return ""
    worker = "the worker waits" if found.count == 1 else "workers wait"
    if found.trainer >= MUCH:
        says = f"the trainer waits {percent(found.trainer)} of the time for episodes"
        if found.workers >= MUCH:
            return f"{says}, and {worker} {percent(found.workers)} for the trainer: raise --max-staleness"
        if found.tail >= MUCH:
            return f"{says}, and {worker} {percent(found.tail)} for others: lower --concurrency to share out each step"
        return f"{says}: add a rollout worker"
    if found.workers >= MUCH:
        spare = found.count > 1 and found.count * found.workers > 0.9
        way_out = "take a worker away" if spare else "give the trainer more GPUs or cores"
        return f"{worker} {percent(found.workers)} of the time, ahead of the trainer: {way_out}"
    return ""


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
