"""Plot of an evaluation from the rows of eval.json: every score of every system with its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from forage.evaluation.tables import score_names
from forage.runs.plots import BLUE, STYLE, WIDTH, save_figure

COLUMNS = 3


def draw_evaluation(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    with mpl.rc_context(STYLE):
        save_figure(evaluation_figure(rows), path)


def evaluation_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel of bars for each score."""
    names = score_names(rows)
    lines = math.ceil(len(names) / COLUMNS)
    figure = Figure(figsize=(WIDTH, lines * (0.9 + 0.28 * len(rows))), layout="constrained")
    panels = list(figure.subplots(lines, COLUMNS, squeeze=False, sharey=True).flat)
    for axes, name in zip(panels, names, strict=False):
        _bars(axes, name, rows)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    return figure


def _bars(axes: Axes, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    bars, found = range(len(rows)), [row["metrics"][name] for row in rows]
    arms = [
        [max(0.0, one["mean"] - one["low"]) for one in found],
        [max(0.0, one["high"] - one["mean"]) for one in found],
    ]
    axes.barh(bars, [one["mean"] for one in found], color=BLUE, height=0.7, xerr=arms, ecolor="#444444", capsize=2)
    axes.set_yticks(bars, [row["name"] for row in rows], fontsize=10)
    axes.set_xlim(0, 1.02)  # the same scale for all scores
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first on top
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_title(name)
