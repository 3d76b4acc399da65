"""Plot of an evaluation from the rows of eval.json: every score with its interval, and the main score against cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from forage.evaluation.tables import score_names
from forage.metrics import Interval
from forage.runs.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, STYLE, VERMILION, WIDTH, YELLOW, save_figure

COLORS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, GREY)
MARKERS = "osD^v"  # the next one where the colours start again
COLUMNS = 3


def draw_evaluation(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A panel of bars for each score; below them, the main score against the tokens it took."""
    with mpl.rc_context(STYLE):
        save_figure(evaluation_figure(rows), path)


def evaluation_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    names = score_names(rows)
    lines = math.ceil(len(names) / COLUMNS)
    height = 0.9 + 0.28 * len(rows)
    figure = Figure(figsize=(WIDTH, lines * height + 4.5), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[lines * height, 4.5])  # an array, despite its type hint
    panels = list(parts[0].subplots(lines, COLUMNS, squeeze=False, sharey=True).flat)
    for axes, name in zip(panels, names, strict=False):
        _bars(axes, name, rows)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    _against_cost(parts[1].subplots(), "answer_similarity" if "answer_similarity" in names else names[0], rows)
    return figure


def _arms(found: Sequence[Interval]) -> list[list[float]]:
    """The lengths of the intervals below and above their means."""
    return [
        [max(0.0, one["mean"] - one["low"]) for one in found], [max(0.0, one["high"] - one["mean"]) for one in found]
    ]  # fmt: skip


def _bars(axes: Axes, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    bars = range(len(rows))
    found = [row["metrics"][name] for row in rows]
    axes.barh(
        bars, [each["mean"] for each in found], color=[COLORS[bar % len(COLORS)] for bar in bars], height=0.7,
        xerr=_arms(found), error_kw={"ecolor": "#444444", "capsize": 2},
    )  # fmt: skip
    axes.set_yticks(bars, [row["name"] for row in rows], fontsize=10)
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first on top
    axes.set_xlim(0, max(0.05, *(1.05 * each["high"] for each in found)))
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_title(name)


def _against_cost(axes: Axes, score: str, rows: Sequence[Mapping[str, Any]]) -> None:
    for number, row in enumerate(rows):
        found = row["metrics"][score]
        axes.errorbar(
            row["metrics"]["sampled_tokens"]["mean"], found["mean"], _arms([found]), markersize=8, capsize=3,
            fmt=MARKERS[number // len(COLORS) % len(MARKERS)], color=COLORS[number % len(COLORS)], label=row["name"],
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="tokens sampled per question", ylabel=score)
    axes.margins(x=0.15)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=10)
