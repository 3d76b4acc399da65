"""Bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np

DRAWS = 2000


def bootstrapped(values: Sequence[float], seed: int = 0) -> Interval:
    """Mean and 95 % percentile bootstrap interval over questions. For a paired comparison, pass the differences.

    Example: equal values have an interval of width 0.
    """
    given = np.asarray(values, np.float64)
    drawn = np.random.default_rng(seed).integers(len(given), size=(DRAWS, len(given)))
    low, high = np.quantile(given[drawn].mean(axis=1), (0.025, 0.975)).tolist()
    return {"mean": float(given.mean()), "low": low, "high": high}


def span(interval: Interval) -> str:
    """Example: .1 to .25 is '.100 to .250'."""
    return f"{interval['low']:.3f} to {interval['high']:.3f}"


class Interval(TypedDict):
    """A mean over questions and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def clear(found: Interval) -> bool:
    """Whether the interval of a difference excludes zero."""
    return found["low"] > 0 or found["high"] < 0
