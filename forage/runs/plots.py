"""Plots of a training run, drawn from its statistics alone.

rewards.png shows each reward over the steps, from 0 to 1: mean, middle half of the episodes, evaluations with their
interval; its first and last mean stand above it.
reward_distribution.png shows how many of the episodes earn how much of each reward, by step: means hide whether all
episodes are middling or half of them fail.
before_after.png shows what training changed on the held-out questions, beside plain RAG.
training.png shows what the updates did and where the time went.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from forage.files import replacing
from forage.metrics import Interval
from forage.runs.stats import AS_TRAINED, StepStats, by_plain_rag, phases_of

Evaluations = Mapping[int, Mapping[str, Interval]]

# Of Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
GREY = "#9A9A9A"
STYLE: Any = {
    "font.size": 12, "axes.titlesize": 13, "axes.titlelocation": "left", "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.grid": True,
    "axes.grid.axis": "y", "grid.color": "#e8e8e8", "savefig.dpi": 150,
    "text.parse_math": False,  # a reward's name may hold a dollar sign
}  # fmt: skip
WIDTH = 12  # inches
WHOLE = (-0.02, 1.02)  # what lies between 0 and 1 is drawn on this scale: over a panel's whole height .004 looks large


def running_mean(values: Sequence[float], reach: int) -> list[float]:
    """Centred running mean: of each value, the `reach` values before it and the `reach` after it.

    Example: [1, 3, 8, 6] with a reach of 1 gives [2, 4, 17 / 3, 7].
    """
    parts = (values[max(0, place - reach) : place + reach + 1] for place in range(len(values)))
    return [math.fsum(part) / len(part) for part in parts]


def reach_of(steps: int) -> int:
    """Reach of the running mean for this many steps: a twentieth of them, from 1 to 20; 0 for fewer than 6 steps."""
    return 0 if steps < 6 else min(20, max(1, steps // 20))


def panels_of(stats: Sequence[StepStats]) -> tuple[Figure, dict[str, Axes]]:
    """A figure with a panel for each reward."""
    names = list(dict.fromkeys(name for step in stats for name in step.summary))
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(WIDTH, 3.4 * rows + 0.6), layout="constrained")
    return figure, {name: figure.add_subplot(rows, columns, n, title=name) for n, name in enumerate(names, 1)}


def rewards_figure(stats: Sequence[StepStats], evaluations: Evaluations) -> Figure:
    """A panel for each reward."""
    figure, panels = panels_of(stats)
    for name, axes in panels.items():
        known = {step.step: step.summary[name] for step in stats if name in step.summary}
        means = [each["mean"] for each in known.values()]
        axes.set_title(f"{name}: {means[0]:.3f} → {means[-1]:.3f}")
        if name != AS_TRAINED:
            axes.set_ylim(*WHOLE)
        reach, steps = reach_of(len(known)), list(known)
        low, high = (running_mean([each[part] for each in known.values()], reach) for part in ("p25", "p75"))
        axes.fill_between(steps, low, high, color=BLUE, alpha=0.16, lw=0, label="middle half of the episodes")
        _line(axes, steps, means, BLUE, "mean")
        if tested := [(step, row[name]) for step, row in sorted(evaluations.items()) if name in row]:
            middle, down, up = np.array([
                [row["mean"], row["mean"] - row["low"], row["high"] - row["mean"]] for _, row in tested
            ]).T  # fmt: skip
            axes.errorbar(
                [step for step, _ in tested], middle, np.maximum([down, up], 0), fmt="D", color=VERMILION, capsize=3,
                zorder=1.5, label="evaluation, 95 % interval",
            )  # fmt: skip
    said = "each step plays other questions, of which some are harder; evaluations always play the same"
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, title=said)
    return figure


def before_after_figure(evaluations: Evaluations, plain: Mapping[str, Interval]) -> Figure:
    """Each held-out reward before training, by plain RAG where that was measured, and after training."""
    before, after = evaluations[min(evaluations)], evaluations[max(evaluations)]
    figure = Figure(figsize=(WIDTH / 2, 1.3 + 0.8 * len(before)), layout="constrained")
    axes = figure.add_subplot(xlim=WHOLE, title="held-out questions, before and after training")
    ways = {"before": (before, GREY, 0.25), "plain RAG": (plain, ORANGE, 0.0), "after": (after, BLUE, -0.25)}
    for label, (row, color, off) in ways.items():
        places = [-place + off for place, name in enumerate(before) if name in row]
        known = [row[name] for name in before if name in row]
        axes.barh(places, [each["mean"] for each in known], 0.22, color=color, label=label)
        for place, each in zip(places, known, strict=True):
            axes.plot([each["low"], each["high"]], [place, place], color="black", lw=1.2)
            axes.text(max(each["high"], each["mean"]) + 0.01, place, f"{each['mean']:.2f}", va="center", fontsize=10)
    axes.set_yticks([-place for place in range(len(before))], list(before))
    axes.grid(visible=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


COLUMNS, LEVELS = 60, 20  # of a panel, at most: neighbouring steps share a column


def distribution_figure(stats: Sequence[StepStats]) -> Figure:
    """A panel for each reward: the darker, the larger the share of a step's episodes that earn so much."""
    figure, panels = panels_of(stats)
    drawn = []
    for name, axes in panels.items():
        earned = {
            step.step: values for step in stats if (values := [v for v in step.rewards.get(name, ()) if v is not None])
        }
        every = [value for values in earned.values() for value in values]
        levels = np.linspace(min(0.0, *every), max(1.0, *every), LEVELS + 1)
        parts = np.array_split(list(earned), min(COLUMNS, len(earned)))
        shares_CL = [level_shares([value for step in part for value in earned[step]], levels) for part in parts]
        edges = [*(part[0] - 0.5 for part in parts), parts[-1][-1] + 0.5]
        drawn.append(axes.pcolormesh(edges, levels, np.transpose(shares_CL), cmap="Blues", vmin=0, vmax=0.5))
        means = running_mean([math.fsum(values) / len(values) for values in earned.values()], reach_of(len(earned)))
        axes.plot(list(earned), means, color=VERMILION, lw=1, label="mean")
        axes.grid(visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
    figure.colorbar(drawn[0], ax=figure.axes, label="share of the step's episodes", aspect=40, extend="max")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center")
    return figure


def level_shares(values: Sequence[float], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the values in each level. Example: [0, .6, 1] with edges 0, .5, 1 gives [1/3, 2/3]."""
    return np.asarray(np.histogram(values, levels)[0] / len(values))


# name of a panel: its figures of a step and the labels of their lines
PANELS: dict[str, dict[str, str]] = {
    "policy loss": {"policy_loss": ""},
    "KL to the reference": {"kl": ""},
    "entropy of the policy": {"entropy": ""},
    "tokens clipped or corrected": {
        "clip_high_share": "clipped above", "clip_low_share": "clipped below", "corrected_share": "corrected",
    },
    "ratio to the sampler": {"ratio_mean": "mean", "ratio_max": "highest", "ratio_min": "lowest"},
    "trainer against sampler": {"mismatch_mean_abs": "|Δ log-probability|", "mismatch_kl": "KL"},
    "gradient norm": {"grad_norm": ""},
    "likelihood gained by rewarded tokens": {"likelihood_gain": ""},
    "episodes, groups and queries": {
        "well_formed": "well-formed episodes", "flat": "flat groups", "distinct_queries": "distinct queries",
    },
    "an episode has": {"turns": "turns", "searches": "searches"},
}  # fmt: skip


def training_figure(stats: Sequence[StepStats]) -> Figure:
    """A panel for each figure of the update that any step reports, then seconds by phase."""
    figures = {
        step.step: {**step.training, **step.episodes, "flat": step.groups["flat"] / max(1, step.groups["total"])}
        for step in stats
    }
    known = {name for row in figures.values() for name in row}
    panels = {title: lines for title, lines in PANELS.items() if lines.keys() & known}
    rows = math.ceil(len(panels) / 3) + 1
    figure = Figure(figsize=(WIDTH, 2.6 * rows + 0.8), layout="constrained")
    grid = figure.add_gridspec(rows, 3)
    for place, (title, lines) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[place // 3, place % 3], title=title)
        draw_panel(axes, figures, lines)
        if "well_formed" in lines:
            axes.set_ylim(*WHOLE)
    axes, phases = figure.add_subplot(grid[rows - 1, :], title="seconds of a step"), phase_seconds(stats)
    if phases:
        axes.stackplot(list(figures), list(phases.values()), labels=list(phases))
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(phases), fontsize=11)
    return figure


def draw_panel(axes: Axes, figures: Mapping[int, Mapping[str, Any]], lines: Mapping[str, str]) -> None:
    """Draw those figures of each step that `lines` names, with its labels."""
    for (name, label), color in zip(lines.items(), (BLUE, ORANGE, GREEN), strict=False):
        if points := {step: row[name] for step, row in figures.items() if name in row}:
            _line(axes, list(points), list(points.values()), color, label)
    if any(lines.values()):
        axes.legend(fontsize=11)


def phase_seconds(stats: Sequence[StepStats]) -> dict[str, list[float]]:
    """Seconds of each step by phase, none twice. Example: {"rollout": 20, "generate": 15} gives rollout 20."""
    names = dict.fromkeys(name for step in stats for name in phases_of(step))
    return {name: [step.seconds.get(name, 0.0) for step in stats] for name in names}


def _line(axes: Axes, steps: Sequence[int], values: Sequence[float], color: str, label: str) -> None:
    """A line by step; where there are many, a faint one with the running mean over it."""
    if reach := reach_of(len(steps)):
        axes.plot(steps, values, color=color, lw=1, alpha=0.4)
    axes.plot(steps, running_mean(values, reach), color=color, marker="" if reach else "o", label=label or None)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))


def draw_plots(run_dir: Path, stats: Sequence[StepStats], evaluations: Evaluations) -> None:
    """Write the plots into the run folder."""
    with mpl.rc_context(STYLE):
        save_figure(rewards_figure(stats, evaluations), run_dir / "rewards.png")
        save_figure(distribution_figure(stats), run_dir / "reward_distribution.png")
        save_figure(training_figure(stats), run_dir / "training.png")
        if len(evaluations) > 1:
            save_figure(before_after_figure(evaluations, by_plain_rag(run_dir)), run_dir / "before_after.png")


def save_figure(figure: Figure, path: Path) -> None:
    """Draw first, then write at once: a viewer never sees half a picture, and a failure leaves the old one."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png")
    with replacing(path) as file:
        file.buffer.write(drawn.getvalue())
