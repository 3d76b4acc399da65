"""Guards: signs that a run has gone wrong without any exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean

from forage.grpo.options import GuardOptions
from forage.runs.stats import StepStats

WINDOW = 3  # steps to average over, so that one bad step is no sign of collapse
MIN_SHARE = 0.5  # of this run's best: no further may well-formed episodes and searches per episode fall
MIN_ENTROPY = 0.005  # nats per token: below it, all episodes of a question are alike and nothing can be compared
MAX_FALL = 0.05  # nats per token that updates take from what they reward; those of a run that learns add some
MAX_FLAT = 10  # steps in a row in which no episode has an advantage or a credit
MAX_KL = 10.0  # to the starting policy; measured only with --beta


def fault_of(history: Sequence[StepStats], options: GuardOptions) -> str:
    """What has gone wrong, all of it in one sentence; empty if nothing has."""
    return "; ".join(faults(history, options))


def faults(history: Sequence[StepStats], options: GuardOptions) -> Iterator[str]:
    """Each as half a sentence.

    Example: shares of well-formed episodes .9, .9, .9, .3, .3, .3 and a window of 3: the last window's mean is less
    than half of the best window's, so "well-formed episodes fell from 0.90 to 0.30".
    """
    flat = history[-MAX_FLAT:]
    if len(flat) == MAX_FLAT and not any(stats.taught for stats in flat):
        yield f"in {MAX_FLAT} steps, there was nothing to learn from, as no two episodes of a question differed"
    if len(history) < WINDOW:
        return
    shares: dict[str, Callable[[StepStats], float]] = {
        "well-formed episodes": lambda stats: stats.episodes["well_formed"],
        "searches per episode": lambda stats: stats.episodes["searches"],
    }
    for name, figure in shares.items():
        windows = means([figure(stats) for stats in history], WINDOW)
        if windows[-1] < MIN_SHARE * max(windows):
            yield f"{name} fell from {max(windows):.2f} to {windows[-1]:.2f}"
    last = history[-WINDOW:]
    entropy = [stats.training["entropy"] for stats in last if "entropy" in stats.training]
    if entropy and mean(entropy) < MIN_ENTROPY:
        yield f"entropy fell to {mean(entropy):.4f} nats per token"
    gains = [stats.training["likelihood_gain"] for stats in last if "likelihood_gain" in stats.training]
    if gains and mean(gains) < -MAX_FALL:
        yield f"updates made what they reward less likely, by {-mean(gains):.2f} nats per token"
    for name, key, most in (
        ("KL to the starting policy", "kl", MAX_KL),
        ("KL of sampler to trainer", "mismatch_kl", options.max_mismatch),
    ):
        values = [stats.training[key] for stats in last if key in stats.training]
        if values and mean(values) > most:
            yield f"{name} rose to {mean(values):.3g}"


def means(values: Sequence[float], window: int) -> list[float]:
    """Mean of each `window` neighbouring values. Example: 1, 2, 3 with a window of 2: 1.5, 2.5."""
    return [mean(values[end - window : end]) for end in range(window, len(values) + 1)]
