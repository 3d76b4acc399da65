"""Waiting: whether a run's trainer waits for its workers. Pure functions of the statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forage.runs.stats import StepStats, step_seconds

LAST = 20  # steps that are looked at: advice is about the run as it is now
MUCH = 0.2  # of the time: below that nothing is said


def advice(history: Sequence[StepStats]) -> str:
    """One sentence on the last steps, but never on the run's first, in which workers start; empty for a short wait.

    Example: two steps of 10 s, in which the trainer waited 6 s and 4 s: the trainer waits 50 % of the time for
    episodes: add a rollout worker, or raise --max-staleness.
    """
    steps = [stats for stats in history[1:][-LAST:] if stats.workers]
    waited = math.fsum(stats.seconds.get("rollout_wait", 0.0) for stats in steps)
    share = waited / (math.fsum(step_seconds(stats) for stats in steps) or 1.0)
    if share < MUCH:
        return ""
    says = f"the trainer waits {100 * share:.0f} % of the time for episodes"
    return f"{says}: add a rollout worker, or raise --max-staleness"
