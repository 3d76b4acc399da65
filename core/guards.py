"""Guards: signs that a run has gone wrong, which no exception tells of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from core.errors import check_at_least_one
from core.run_stats import StepStats


@dataclass(frozen=True)
class GuardOptions:
    """What counts as a collapse, and what is done then."""

    on_collapse: Literal["stop", "rollback", "warn"] = "stop"
    """stop ends the run; rollback goes on from an older adapter with a fresh optimiser; warn only notes it."""
    window: int = 3
    """Steps whose mean is looked at, so that one bad step is none."""
    least_share: float = 0.5
    """Well-formed episodes and searches an episode may not fall below this share of the best they were in this run."""
    least_entropy: float = 0.005
    """Nats a token; below, all episodes of a question are the same, and nothing can be compared."""
    most_flat: int = 10
    """Steps in a row of which no two episodes of a question were rewarded differently, so that nothing was learnt."""
    most_kl: float = 10.0
    """Of the policy to the one that training began with, where --beta measures it."""
    most_mismatch: float = 0.1
    """Mean KL of the sampler to the trainer; above, an adapter is stale, or precisions differ too far."""
    rollback_steps: int = 5
    """How many adapters back a rollback goes."""
    most_rollbacks: int = 3
    """After so many a run stops all the same."""

    def check(self) -> None:
        check_at_least_one(self, "window", "rollback_steps", "most_flat")


def fault_of(history: Sequence[StepStats], options: GuardOptions) -> str:
    """What has gone wrong by the last steps, as half a sentence; empty if nothing has.

    Example: well-formed shares of .9, .9, .9, .3, .3, .3 and a window of 3: the last window's mean is under half of the
    best window's, so "well-formed episodes fell from 0.90 to 0.30".
    """
    flat = history[-options.most_flat :]
    if len(flat) == options.most_flat and all(stats.groups["flat"] == stats.groups["total"] for stats in flat):
        return f"in {options.most_flat} steps no two episodes of a question were rewarded differently"
    if len(history) < options.window:
        return ""
    shares: dict[str, Callable[[StepStats], float]] = {
        "well-formed episodes": lambda stats: stats.episodes["well_formed"],
        "searches an episode": lambda stats: stats.episodes["searches"],
    }
    for name, figure in shares.items():
        windows = means([figure(stats) for stats in history], options.window)
        if windows[-1] < options.least_share * max(windows):
            return f"{name} fell from {max(windows):.2f} to {windows[-1]:.2f}"
    last = history[-options.window :]
    entropy = [stats.training["entropy"] for stats in last if "entropy" in stats.training]
    if entropy and mean(entropy) < options.least_entropy:
        return f"entropy fell to {mean(entropy):.4f} nats a token"
    for name, key, most in (
        ("KL to the start", "kl", options.most_kl),
        ("KL of sampler to trainer", "mismatch_kl", options.most_mismatch),
    ):
        values = [stats.training[key] for stats in last if key in stats.training]
        if values and mean(values) > most:
            return f"{name} rose to {mean(values):.3g}"
    return ""


def means(values: Sequence[float], window: int) -> list[float]:
    """Means of each so many values in a row. Example: 1, 2, 3 by 2: 1.5, 2.5."""
    return [mean(values[end - window : end]) for end in range(window, len(values) + 1)]
