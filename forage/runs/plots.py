"""Plots of a training run, drawn from its statistics alone.

rewards.png shows all rewards over the steps in one panel, then each in its own: mean, middle half of the episodes,
evaluations with their interval.
training.png shows what the updates did and where the time went. How rewards are distributed is in run.html.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
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
from forage.runs.stats import NO_PHASES, StepStats

Floats = NDArray[np.float64]
Evaluations = Mapping[int, Mapping[str, Interval]]

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#9A9A9A"
STYLE: Any = {
    "font.size": 12, "axes.titlesize": 13, "axes.titlelocation": "left", "axes.titlepad": 8, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#777777", "axes.axisbelow": True,
    "xtick.color": "#444444", "ytick.color": "#444444", "axes.grid": True, "axes.grid.axis": "y",
    "grid.color": "#e8e8e8", "lines.solid_capstyle": "round", "savefig.dpi": 150,
    "text.parse_math": False,  # a reward's name may hold a dollar sign
}  # fmt: skip
# The rewards of grpo_rollout.py have fixed colours; others get the rest in turn.
REWARD_COLORS = {"overall": BLUE, "mrr": SKY, "answer_similarity": ORANGE, "format": GREEN}
OTHER_COLORS = (PURPLE, VERMILION, YELLOW, GREY)
WIDTH = 12  # inches


def running_mean(values: Sequence[float] | Floats, reach: int) -> Floats:
    """Centred running mean: of each value, the `reach` values before it and the `reach` after it.

    Example: [1, 3, nan, 8, 6] with a reach of 1 gives [2, 2, 5.5, 7, 7].
    """
    array = np.asarray(values, np.float64)
    known = ~np.isnan(array)
    sums, counts = (np.cumsum([0, *part]) for part in (np.where(known, array, 0), known))
    places = np.arange(len(array))
    first, last = np.maximum(places - reach, 0), np.minimum(places + reach + 1, len(array))
    count = counts[last] - counts[first]
    return np.where(count > 0, (sums[last] - sums[first]) / np.maximum(count, 1), np.nan)


def reach_of(steps: int) -> int:
    """Reach of the running mean for this many steps: a twentieth of them, from 1 to 20; 0 for fewer than 6 steps."""
    return 0 if steps < 6 else min(20, max(1, steps // 20))


def rewards_figure(stats: Sequence[StepStats], evaluations: Evaluations) -> Figure:
    """All rewards in one panel on top, a panel for each below."""
    names = list(dict.fromkeys(name for step in stats for name in step.rewards))
    columns, reach = min(3, len(names)), reach_of(len(stats))
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(WIDTH, 4.6 + 3.0 * rows), layout="constrained")
    grid = figure.add_gridspec(1 + rows, columns, height_ratios=[1.35, *[1] * rows])
    together = figure.add_subplot(grid[0, :])
    for place, (name, color) in enumerate(colors_of(names).items()):
        axes = figure.add_subplot(grid[1 + place // columns, place % columns])
        mean, p25, p75 = (
            np.array([step.summary[name][part] if name in step.summary else np.nan for step in stats])
            for part in ("mean", "p25", "p75")
        )
        _line(together, stats, mean, color, name)
        low, high = running_mean(p25, reach), running_mean(p75, reach)
        axes.fill_between(_steps(stats), low, high, color=color, alpha=0.16, lw=0, label="middle half of the episodes")
        _line(axes, stats, mean, color, "mean")
        _evaluated(axes, [(step, row[name]) for step, row in sorted(evaluations.items()) if name in row])
        _titled(axes, name)
    _titled(together, f"all rewards, mean of {2 * reach + 1} steps" if reach else "all rewards")
    together.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=min(5, len(names)), borderaxespad=0.2)
    labelled = {
        str(label): line
        for axes in figure.axes[1:]
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(labelled.values()), list(labelled), loc="outside lower center", ncols=len(labelled))
    return figure


def colors_of(names: Sequence[str]) -> dict[str, str]:
    """A colour for each reward."""
    others = [name for name in names if name not in REWARD_COLORS]
    rest = {name: OTHER_COLORS[place % len(OTHER_COLORS)] for place, name in enumerate(others)}
    return {name: REWARD_COLORS.get(name) or rest[name] for name in names}


def _evaluated(axes: Axes, tested: Sequence[tuple[int, Interval]]) -> None:
    tested = tested[:: -math.ceil(len(tested) / 40) or None]  # always includes the last one
    if tested:
        low, middle, high = np.array([[row["low"], row["mean"], row["high"]] for _, row in tested]).T
        axes.errorbar(
            [step for step, _ in tested], middle, np.maximum([middle - low, high - middle], 0), fmt="D",
            color=VERMILION, markersize=7, markerfacecolor="white", markeredgewidth=1.6, capsize=3, elinewidth=1.6,
            zorder=1.5, label="evaluation, 95 % interval",
        )  # fmt: skip


RATIO = "ratio to the sampler"
# name of a panel: its figures of the update and the labels of their lines
PANELS: dict[str, dict[str, str]] = {
    "policy loss": {"policy_loss": ""},
    "KL to the reference": {"kl": ""},
    "entropy of the policy": {"entropy": ""},
    "tokens clipped or corrected": {
        "clip_high_share": "clipped above", "clip_low_share": "clipped below", "corrected_share": "corrected",
    },
    RATIO: {"ratio_mean": "mean", "ratio_max": "highest", "ratio_min": "lowest"},
    "trainer against sampler": {"mismatch_mean_abs": "|Δ log-probability|", "mismatch_kl": "KL"},
    "gradient norm": {"grad_norm": ""},
    "loss of demonstrations": {"demonstration_loss": ""},
}  # fmt: skip
# Phases in the order they are stacked, without those that are part of another phase; the rest of a step is "other".
PHASES = {
    "rollout": BLUE, "rewards": SKY, "logprobs": GREEN, "backward": ORANGE, "publish": PURPLE, "evaluation": VERMILION,
}  # fmt: skip


def training_figure(stats: Sequence[StepStats]) -> Figure:
    """A panel for each figure of the update that any step reports, then seconds by phase."""
    panels = {
        title: {label: [step.training.get(name, np.nan) for step in stats] for name, label in lines.items()}
        for title, lines in PANELS.items()
        if any(name in step.training for step in stats for name in lines)
    } | {
        "episodes and groups": {
            "well-formed episodes": [step.episodes["well_formed"] for step in stats],
            "flat groups": [step.groups["flat"] / max(1, step.groups["total"]) for step in stats],
        },
        "an episode has": {
            "turns": [step.episodes["turns"] for step in stats],
            "searches": [step.episodes["searches"] for step in stats],
        },
    }
    rows = math.ceil(len(panels) / 3)
    figure = Figure(figsize=(WIDTH, 2.6 * rows + 3.4), layout="constrained")
    grid = figure.add_gridspec(rows + 1, 3, height_ratios=[*[1] * rows, 1.3])
    for place, (title, lines) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[place // 3, place % 3])
        for (label, values), color in zip(lines.items(), (BLUE, ORANGE, GREEN), strict=False):
            if not np.isnan(values).all():
                _line(axes, stats, values, color, label)
        if title == RATIO and np.nanmax([0.0, *lines["highest"]]) > 10:  # and another token's may be nearly 0
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
        _titled(axes, title)
        if any(lines):
            axes.legend(fontsize=11, handlelength=1.2)
    axes, phases = figure.add_subplot(grid[rows, :]), phase_seconds(stats)
    if phases:
        colors = [PHASES.get(name, GREY) for name in phases]
        axes.stackplot(_steps(stats), list(phases.values()), labels=list(phases), colors=colors)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(phases), fontsize=11)
    _titled(axes, "seconds of a step")
    return figure


def phase_seconds(stats: Sequence[StepStats]) -> dict[str, list[float]]:
    """Seconds of each step by phase; they add up to the step's.

    Example: {"rollout": 20, "generate": 15, "backward": 8, "step": 31} gives rollout 20, backward 8, other 3.
    """
    named = {name for step in stats for name in step.seconds} - set(NO_PHASES)
    phases = [*(name for name in PHASES if name in named), *sorted(named - set(PHASES))]
    seconds = {name: [step.seconds.get(name, 0.0) for step in stats] for name in phases}
    sums = [sum(column[place] for column in seconds.values()) for place in range(len(stats))]
    other = [max(0.0, step.seconds.get("step", 0.0) - total) for step, total in zip(stats, sums, strict=True)]
    return {name: column for name, column in (seconds | {"other": other}).items() if any(column)}


def _steps(stats: Sequence[StepStats]) -> list[int]:
    return [step.step for step in stats]


def _line(axes: Axes, stats: Sequence[StepStats], values: Sequence[float] | Floats, color: str, label: str) -> None:
    """A line by step; where there are many, a faint one with the running mean over it."""
    reach, steps = reach_of(len(stats)), _steps(stats)
    marker = "o" if len(steps) <= 20 else ""
    faint: dict[str, Any] = {"lw": 1, "alpha": 0.4} if reach else {"lw": 2, "label": label or None}
    axes.plot(steps, values, color=color, marker=marker, markersize=4, **faint)
    if reach:
        axes.plot(steps, running_mean(values, reach), color=color, lw=2, label=label or None)


def _titled(axes: Axes, title: str) -> None:
    axes.set(xlabel="step", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))


def draw_plots(run_dir: Path, stats: Sequence[StepStats], evaluations: Evaluations) -> None:
    """Write the plots into the run folder."""
    draw: dict[str, Callable[[], Figure]] = {
        "rewards.png": lambda: rewards_figure(stats, evaluations),
        "training.png": lambda: training_figure(stats),
    }
    for name, figure in draw.items():
        with mpl.rc_context(STYLE):
            save_figure(figure(), run_dir / name)


def save_figure(figure: Figure, path: Path) -> None:
    """Draw first, then write at once: a viewer never sees half a picture, and a failure leaves the old one."""
    drawn = png(figure)
    with replacing(path) as file:
        file.buffer.write(drawn)


def png(figure: Figure) -> bytes:
    """The figure as PNG. Its layout is computed first and then dropped, or savefig would draw everything twice."""
    drawn, engine = io.BytesIO(), figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine(None)
    figure.savefig(drawn, format="png")
    return drawn.getvalue()
