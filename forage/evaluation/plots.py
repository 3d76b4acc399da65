"""Plots of an evaluation from the rows of eval.json: every score with its interval, and the main score against cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from forage.evaluation.summary import score_names
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
    above, below = parts
    panels = list(above.subplots(lines, COLUMNS, squeeze=False, sharey=True).flat)
    for axes, name in zip(panels, names, strict=False):
        _bars(axes, name, rows)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    score = "answer_similarity" if "answer_similarity" in names else names[0]
    left, right = below.subplots(1, 2, sharey=True)
    _against_cost(left, score, rows, ("sampled_tokens",), "tokens sampled per question")
    _against_cost(right, score, rows, ("sampled_tokens", "read_tokens"), "tokens sampled and read per question")
    left.set_ylabel(score)
    right.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=10)
    return figure


def _bars(axes: Axes, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    bars = range(len(rows))
    found = [row["metrics"][name] for row in rows]
    arms = [[each["mean"] - each["low"] for each in found], [each["high"] - each["mean"] for each in found]]
    colors = [COLORS[bar % len(COLORS)] for bar in bars]
    axes.barh(
        bars, [each["mean"] for each in found], color=colors, height=0.7,
        xerr=[[max(0.0, arm) for arm in side] for side in arms], error_kw={"ecolor": "#444444", "capsize": 2},
    )  # fmt: skip
    axes.set_yticks(bars, [row["name"] for row in rows], fontsize=10)
    axes.set_ylim(len(rows) - 0.4, -0.6)  # the first on top
    axes.set_xlim(0, max(0.05, *(1.05 * each["high"] for each in found)))
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_title(name)


def _against_cost(axes: Axes, score: str, rows: Sequence[Mapping[str, Any]], costs: Sequence[str], label: str) -> None:
    for number, row in enumerate(rows):
        found = row["metrics"][score]
        tokens = sum(row["metrics"][cost]["mean"] for cost in costs)
        arms = [[max(0.0, found["mean"] - found["low"])], [max(0.0, found["high"] - found["mean"])]]
        axes.errorbar(
            tokens, found["mean"], arms, fmt=MARKERS[number // len(COLORS) % len(MARKERS)],
            color=COLORS[number % len(COLORS)], markersize=8, capsize=3, label=row["name"],
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)
    axes.margins(x=0.15)
    axes.set_title(f"{score} against cost")
