"""Progress of training: what is printed after each step, and whether the trainer waits for its workers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from forage.progress import duration
from forage.runs.stats import NO_PHASES, StepStats, step_seconds
from forage.text import say

# Steps whose median predicts the time left (the few with an evaluation do not move it), and that advice is about.
LAST = 20
MUCH = 0.2  # of the time: a shorter wait is not told


def print_step(history: Sequence[StepStats], last: int, sampled: str = "") -> None:
    """Print the last step's line, and a line for whatever is to be noted about it.

    `sampled`: how the episodes of steps are sampled, in the words of the line: unlike those of evaluations.
    """
    stats = history[-1]
    for line in (step_line(history, last, sampled), *(f"note: {note}" for note in (*lessons(stats), *stats.notes))):
        say(line)


def step_line(history: Sequence[StepStats], last: int, sampled: str = "") -> str:
    """Example: step 12 of 500, sampled at T 1: overall 0.512, mrr 0.400; 34 s (rollout 20, backward 9); 4 h 37 min
    left."""
    return "; ".join(_parts(history, last, sampled))


def _parts(history: Sequence[StepStats], last: int, sampled: str) -> Iterator[str]:
    stats = history[-1]
    rewards = ", ".join(f"{name} {summary['mean']:.3f}" for name, summary in stats.summary.items())
    yield f"step {stats.step} of {last}{sampled}: {rewards}"
    if stats.seconds:
        phases_s = {name: seconds for name, seconds in stats.seconds.items() if name not in NO_PHASES}
        longest = sorted(phases_s.items(), key=lambda item: -item[1])[:3]
        yield f"{step_seconds(stats):.0f} s ({', '.join(f'{name} {seconds:.0f}' for name, seconds in longest)})"
    if left := seconds_left(history, last):
        yield f"{duration(left)} left"


def lessons(stats: StepStats) -> list[str]:
    """What kept the step from teaching anything, if something did, and what to do."""
    total, flat = stats.groups["total"], stats.groups["flat"]
    if not stats.episodes["well_formed"]:
        return [
            "no episode keeps to the protocol (a search, then an answer); teach it by a warm start (sft_train.py) or a "
            "longer one"
        ]
    if flat == total and not stats.taught:
        return [f"{flat} of {total} groups flat (all episodes of a question earned the same): no reward to learn from"]
    return []


def seconds_left(history: Sequence[StepStats], last: int) -> float:
    """Seconds that the remaining steps take at the median of the last ones.

    Example: steps 0 to 2 took 10, 12 and 50 seconds, so the 7 more up to step 9 take 84.
    """
    return max(0, last - history[-1].step) * statistics.median(step_seconds(stats) for stats in history[-LAST:])


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
