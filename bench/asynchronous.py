"""Steps per hour of a run whose rollouts play ahead, against one in lock-step; and what both learnt.

    python -m bench.asynchronous runs/lockstep runs/ahead

Both are finished runs of the same stack, with MAX_STALENESS=0 and 1. Wall-clock time is counted from the statistics of
the second step to those of the last, because the first step waits for servers to start.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from bench.report import Bar, finish
from forage.cli import run_script
from forage.errors import UserError
from forage.runs.stats import StepStats, read_stats
from forage.statistics import bootstrapped


@dataclass(frozen=True)
class Pace:
    """The figures of one run."""

    steps: int
    per_hour: float
    reward: list[float]
    """The reward of every episode in the last third of the steps."""
    stale: int
    """Episodes that were dropped as too old."""
    behind: float
    """Share of the steps that were played with an older adapter than their own."""


def pace_of(folder: Path) -> Pace:
    stats = read_stats(folder)
    if len(stats) < 3:
        raise UserError(f"{folder} has {len(stats)} steps; at least 3 are needed to tell its pace")
    ended = [(folder / f"training_stats_{row.step}.json").stat().st_mtime for row in stats]
    last: list[StepStats] = stats[-max(1, len(stats) // 3) :]
    return Pace(
        len(stats),
        3600 * (len(stats) - 2) / (ended[-1] - ended[1]),
        [reward for row in last for reward in row.rewards["overall"] if reward is not None],
        sum(int(row.episodes["stale"]) for row in stats),
        float(np.mean([int(row.adapter[1:]) < row.step for row in stats])),
    )


@dataclass(frozen=True)
class Options:
    """Two runs of the same training."""

    lockstep: tyro.conf.Positional[Path]
    """Run folder of --max-staleness 0."""
    ahead: tyro.conf.Positional[Path]
    """Run folder of --max-staleness 1 or more."""


def main(options: Options) -> None:
    lockstep, ahead = options.lockstep, options.ahead
    paces = {folder: pace_of(folder) for folder in (lockstep, ahead)}
    for folder, pace in paces.items():
        reward = bootstrapped(pace.reward)
        print(
            f"{folder.name:12} {pace.steps} steps, {pace.per_hour:6.1f} an hour; reward of the last third "
            f"{reward['mean']:.3f} ({reward['low']:.3f} to {reward['high']:.3f}); {pace.behind:.0%} of the steps by an "
            f"older adapter; {pace.stale} episodes dropped"
        )
    finish([Bar("ahead / lock-step steps an hour", paces[ahead].per_hour / paces[lockstep].per_hour, 1)])


if __name__ == "__main__":
    run_script(main, description=__doc__)
