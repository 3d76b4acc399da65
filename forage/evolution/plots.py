"""Plot of an evolution: scores on held-out questions after each round, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forage.evaluation.plots import COLORS, MARKERS
from forage.runs.plots import STYLE, WIDTH, save_figure

SCORES = ("mrr", "answer_similarity")
ROUND = "round_"  # begins the names of the rounds' policies; another policy is drawn across them


def draw_rounds(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    with mpl.rc_context(STYLE):
        save_figure(rounds_figure(rows), path)


def rounds_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel for each score, a line for each system; another policy's `single` is a dashed line."""
    names = [name for name in SCORES if name in rows[0]["metrics"]]
    figure = Figure(figsize=(WIDTH, 4.5), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        _lines(axes, name, rows)
    panels[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=10)
    return figure


def points_of(rows: Sequence[Mapping[str, Any]], score: str) -> dict[str, list[tuple[int, float, float, float]]]:
    """(round, mean, low, high) of each system's points, in order.

    Example: round_0/single at .5 (.4 to .6) gives {"single": [(0, .5, .4, .6)]}.
    """
    points: dict[str, list[tuple[int, float, float, float]]] = {}
    for row in rows:
        if row["policy"].startswith(ROUND) and score in row["metrics"]:
            found = row["metrics"][score]
            point = (int(row["policy"].removeprefix(ROUND)), found["mean"], found["low"], found["high"])
            points.setdefault(row["system"], []).append(point)
    return points


def _lines(axes: Axes, score: str, rows: Sequence[Mapping[str, Any]]) -> None:
    points = points_of(rows, score)
    for number, (system, several) in enumerate(points.items()):
        rounds, means, lows, highs = zip(*several, strict=True)
        arms = [
            [max(0.0, mean - low) for mean, low in zip(means, lows, strict=True)],
            [max(0.0, high - mean) for mean, high in zip(means, highs, strict=True)],
        ]
        axes.errorbar(
            rounds, means, arms, fmt=f"{MARKERS[number % len(MARKERS)]}-", color=COLORS[number % len(COLORS)],
            markersize=7, capsize=3, label=system,
        )  # fmt: skip
    others = [row for row in rows if not row["policy"].startswith(ROUND) and score in row["metrics"]]
    for number, row in enumerate(others, len(points)):
        axes.axhline(row["metrics"][score]["mean"], color=COLORS[number % len(COLORS)], ls="--", label=row["name"])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="round (0: the start)", title=score)
