"""Plots of a training run, drawn from its statistics alone.

rewards.png shows all rewards over the steps in one panel, then each in its own: mean, middle half of the episodes,
evaluations with their interval.
reward_distribution.png shows how the distribution of the overall reward changes, training.png what the updates did and
where the time went.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from forage.files import replacing
from forage.runs.stats import NO_PHASES, StepStats, read_evaluations
from forage.statistics import Interval

Floats = NDArray[np.float64]
Panel = Callable[[Axes], None]

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#9A9A9A"
SHARES = LinearSegmentedColormap.from_list("shares", ["#ffffff", "#cfe3f1", "#7fb6d9", BLUE, "#06304d"])
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
MOST_POINTS = 300  # points of a line, however many steps there are
MOST_COLUMNS, MOST_RIDGES, MOST_LEVELS = 100, 8, 40  # of the distribution

# The drawing.


@dataclass(frozen=True)
class Bins:
    """Bins of neighbouring steps, each drawn as one point.

    Example: steps 0 to 4 in at most 3 bins are (0, 1), (2, 3), (4), drawn at .5, 2.5 and 4, from -.5 to 4.5.
    """

    parts: tuple[slice, ...]
    x: Floats
    edges: Floats

    @classmethod
    def of(cls, steps: Sequence[int], most: int = MOST_POINTS) -> Bins:
        # All bins have one size: an average over more steps is smoother, which would look like a change in the run.
        size = math.ceil(len(steps) / most)
        parts = tuple(slice(start, min(start + size, len(steps))) for start in range(0, len(steps), size))
        of_step = np.asarray(steps, np.float64)
        between = [(of_step[part.start - 1] + of_step[part.start]) / 2 for part in parts[1:]]
        edges = np.array([of_step[0] - 0.5, *between, of_step[-1] + 0.5])
        return cls(parts, np.array([of_step[part].mean() for part in parts]), edges)

    def means(self, values: Sequence[float] | Floats) -> Floats:
        """Each bin's mean over the steps that have a value; NaN where none has."""
        array, starts = np.asarray(values, np.float64), [part.start for part in self.parts]
        known = ~np.isnan(array)
        sums, counts = np.add.reduceat(np.where(known, array, 0), starts), np.add.reduceat(known.astype(int), starts)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def pooled(self, values: Sequence[Floats]) -> list[Floats]:
        """All values of each bin's steps."""
        return [np.concatenate(values[part]) for part in self.parts]


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


def rewards_figure(stats: Sequence[StepStats], final: Mapping[int, Mapping[str, Interval]] | None = None) -> Figure:
    """All rewards in one panel on top, a panel for each below. `final`: evaluations after the last step."""
    names = list(dict.fromkeys(name for step in stats for name in step.rewards))
    colors = colors_of(names)
    columns = min(len(names), 4 if len(names) % 3 else 3)
    rows = math.ceil(len(names) / columns)
    figure = Figure(figsize=(WIDTH, 4.6 + 3.0 * rows), layout="constrained")
    grid = figure.add_gridspec(1 + rows, columns, height_ratios=[1.35, *[1] * rows])
    summaries = [step.summary for step in stats]
    _all_rewards_panel(figure.add_subplot(grid[0, :]), colors, stats, summaries)
    for place, name in enumerate(names):
        axes = figure.add_subplot(grid[1 + place // columns, place % columns])
        own: list[Mapping[str, Any]] = [summary.get(name, {}) for summary in summaries]
        _reward_panel(axes, name, colors[name], stats, own, final or {})
    handles: dict[str, Any] = {}
    for axes in figure.axes[1:]:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(label), line)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles))
    return figure


def colors_of(names: Sequence[str]) -> dict[str, str]:
    """A colour for each reward."""
    others = [name for name in names if name not in REWARD_COLORS]
    rest = {name: OTHER_COLORS[place % len(OTHER_COLORS)] for place, name in enumerate(others)}
    return {name: REWARD_COLORS.get(name) or rest[name] for name in names}


def _all_rewards_panel(
    axes: Axes, colors: Mapping[str, str], stats: Sequence[StepStats], summaries: Sequence[Mapping[str, Any]]
) -> None:
    bins, reach = Bins.of([step.step for step in stats]), reach_of(len(stats))
    for name, color in colors.items():
        _smooth(axes, bins, [summary.get(name, {}).get("mean", np.nan) for summary in summaries], color, name)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=min(5, len(colors)), borderaxespad=0.2)
    title = "all rewards"
    axes.set_title(f"{title}, mean of {2 * reach + 1} steps" if reach else title)
    _step_axis(axes, bins, room=0.012)
    _room(axes, 0.1)


def _reward_panel(
    axes: Axes, name: str, color: str, stats: Sequence[StepStats], summaries: Sequence[Mapping[str, Any]],
    final: Mapping[int, Mapping[str, Interval]],
) -> None:  # fmt: skip
    bins, reach = Bins.of([step.step for step in stats]), reach_of(len(stats))
    mean, p25, p75 = (np.array([s.get(part, np.nan) for s in summaries]) for part in ("mean", "p25", "p75"))
    _band(axes, bins, running_mean(p25, reach), running_mean(p75, reach), "middle half of the episodes", color)
    _line(axes, bins, mean, color, "mean", quiet=reach > 0)
    if reach:
        smooth = bins.means(running_mean(mean, reach))
        axes.plot(bins.x, smooth, color=color, lw=2.4, label=f"mean of {2 * reach + 1} steps")
    evaluations = {step.step: step.evaluation for step in stats if step.evaluation} | dict(final)
    tested = [(step, evaluation[name]) for step, evaluation in sorted(evaluations.items()) if name in evaluation]
    tested = tested[:: -math.ceil(len(tested) / 40) or None]  # always includes the last one
    if tested:
        middle = np.array([interval["mean"] for _, interval in tested])
        arms = [[interval["mean"] - interval["low"] for _, interval in tested],
                [interval["high"] - interval["mean"] for _, interval in tested]]  # fmt: skip
        axes.errorbar(
            [step for step, _ in tested], middle, np.maximum(arms, 0), fmt="D", color=VERMILION, markersize=7,
            markerfacecolor="white", markeredgewidth=1.6, capsize=3, elinewidth=1.6, zorder=1.5,
            label="evaluation, 95 % interval",
        )  # fmt: skip
    axes.set_title(name)
    _step_axis(axes, bins, room=0.012, until=max((step + 0.5 for step, _ in tested), default=0.0))
    _room(axes, 0.1)


def distribution_figure(stats: Sequence[StepStats]) -> Figure:
    """The distribution of the overall reward: by step with quantiles, and as a ridge for each part of the run."""
    figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.7, 1])
    values = [np.asarray(step.rewards["overall"]) for step in stats]
    low, high = min(value.min() for value in values), max(value.max() for value in values)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    reach, steps = (low, high if high > low else low + 1), [step.step for step in stats]
    _heat_map(left, figure, Bins.of(steps, MOST_COLUMNS), values, reach)
    _ridges(right, Bins.of(steps, MOST_RIDGES), steps, values, reach)
    return figure


def levels_of(pooled: Sequence[Floats], reach: tuple[float, float], most: int) -> Floats:
    """Edges of a histogram's levels, of which there are 2 sqrt(episodes per column), at least 10 and at most `most`.

    Example: columns of 64 episodes have 16 levels.
    """
    count = 2 * math.isqrt(min(len(column) for column in pooled))
    return np.linspace(*reach, min(max(count, 10), most) + 1)


def shares(values: Floats, levels: Floats) -> Floats:
    """Share of the values in each level. Example: [0, .6, 1] with edges 0, .5, 1 gives [1/3, 2/3]."""
    return np.asarray(np.histogram(values, levels)[0] / len(values))


def _heat_map(
    axes: Axes, figure: Figure, bins: Bins, values: Sequence[Floats], reach: tuple[float, float]
) -> None:  # fmt: skip
    pooled = bins.pooled(values)
    levels = levels_of(pooled, reach, MOST_LEVELS)
    shares_CL = np.stack([shares(column, levels) for column in pooled])
    # A column with everything in one level must not make all the others look pale.
    mesh = axes.pcolormesh(
        bins.edges, levels, shares_CL.T, cmap=SHARES, vmin=0, vmax=min(float(shares_CL.max()), 0.4), rasterized=True
    )
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, aspect=30, extend="max" if shares_CL.max() > 0.4 else "neither")
    bar.outline.set_visible(False)
    bar.set_label("share of the episodes")
    bar.ax.yaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    bar.ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
    quantiles_QC = np.stack([np.quantile(column, (0.1, 0.25, 0.5, 0.75, 0.9)) for column in pooled], axis=1)
    lines = {"median": ([2], 2.4, "-"), "quartiles": ([1, 3], 1.5, "-"), "10 % and 90 %": ([0, 4], 1.2, (0, (3, 2)))}
    for label, (rows, width, dashes) in lines.items():
        for row in rows:
            x, y = _stairs(bins, quantiles_QC[row]) if len(bins.x) <= 30 else (bins.x, quantiles_QC[row])
            axes.plot(x, y, color=VERMILION, lw=width, ls=dashes, label=label if row == rows[0] else None)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, borderaxespad=0.2)
    axes.grid(visible=False)
    axes.set(ylabel="overall reward", ylim=reach)
    _step_axis(axes, bins)


def _ridges(
    axes: Axes, bins: Bins, steps: Sequence[int], values: Sequence[Floats], reach: tuple[float, float]
) -> None:  # fmt: skip
    pooled = bins.pooled(values)
    levels = levels_of(pooled, reach, MOST_LEVELS // 2)
    heights = [shares(column, levels) for column in pooled]
    # The tallest ridge covers half of the one above it.
    scale = 1.5 / max(float(height.max()) for height in heights) if len(heights) > 1 else 0.9 / heights[0].max()
    for place, (part, column, height) in enumerate(zip(bins.parts, pooled, heights, strict=True)):
        base, order = float(-place), 2 * place
        shade = SHARES(0.3 + 0.5 * place / max(1, len(pooled) - 1))
        axes.stairs(base + height * scale, levels, baseline=base, fill=True, color=shade, zorder=order + 2)
        axes.stairs(base + height * scale, levels, baseline=base, color="white", lw=1.2, zorder=order + 3)
        axes.plot([np.median(column)] * 2, [base, base + 0.32], color=VERMILION, lw=2.4, zorder=2 * len(pooled) + 4)
        first, last = steps[part.start], steps[part.stop - 1]
        axes.annotate(
            f"{first}" if first == last else f"{first}–{last}", (0, base), (-6, 2), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", va="bottom", color="#444444",
        )  # fmt: skip
    axes.set(xlabel="overall reward", xlim=reach, yticks=[], ylim=(0.02 - len(pooled) + 0.9, 1.6))
    axes.set_title("by steps, with their median")
    axes.spines["left"].set_visible(False)


TOKENS = "tokens clipped or corrected"
# name of a panel: its figures and the labels of their lines
PANELS: dict[str, dict[str, str]] = {
    "policy loss": {"policy_loss": ""},
    "KL to the reference": {"kl": ""},
    "entropy of the policy": {"entropy": ""},
    TOKENS: {"clip_high_share": "clipped above", "clip_low_share": "clipped below", "corrected_share": "corrected"},
    "trainer against sampler": {"mismatch_mean_abs": "|Δ log-probability|", "mismatch_kl": "KL"},
    "gradient norm": {"grad_norm": ""},
    "loss of demonstrations": {"demonstration_loss": ""},
}
RATIO = "ratio to the sampler, with range"
ORDER = [*list(PANELS)[:4], RATIO, *list(PANELS)[4:]]
SHARE_PANELS = {TOKENS, "episodes and groups"}
# Phases in the order they are stacked, without those that are part of another phase; the rest of a step is "other".
PHASES = {
    "rollout": BLUE, "rewards": SKY, "logprobs": GREEN, "backward": ORANGE, "publish": PURPLE, "evaluation": VERMILION,
    "plots": YELLOW,
}  # fmt: skip


def training_figure(stats: Sequence[StepStats]) -> Figure:
    """A panel for each figure of the update that any step reports, then seconds by phase."""
    bins = Bins.of([step.step for step in stats])
    draw: dict[str, Panel] = {
        title: partial(_training_panel, lines=lines, bins=bins, stats=stats) for title, lines in PANELS.items()
    }
    named = {RATIO: ["ratio_min", "ratio_mean", "ratio_max"]} | {title: list(lines) for title, lines in PANELS.items()}
    reported = {name for step in stats for name in step.training}
    titles = [title for title in ORDER if reported & set(named[title])]
    draw |= {
        RATIO: partial(_ratio_panel, bins=bins, stats=stats),
        "episodes and groups": partial(_episodes_panel, bins=bins, stats=stats),
        "an episode has": partial(_searches_panel, bins=bins, stats=stats),
    }
    titles += ["episodes and groups", "an episode has"]
    rows = math.ceil(len(titles) / 3)
    figure = Figure(figsize=(WIDTH, 2.4 * rows + 3.4), layout="constrained")
    grid = figure.add_gridspec(rows + 1, 3, height_ratios=[*[1] * rows, 1.3])
    for place, title in enumerate(titles):
        axes = figure.add_subplot(grid[place // 3, place % 3])
        draw[title](axes)
        _finish(axes, title, bins, last=place + 3 >= len(titles))
    _seconds_panel(figure.add_subplot(grid[rows, :]), bins, stats)
    return figure


def _training_panel(axes: Axes, *, lines: Mapping[str, str], bins: Bins, stats: Sequence[StepStats]) -> None:
    for (name, label), color in zip(lines.items(), (BLUE, ORANGE, GREEN), strict=False):
        values = [step.training.get(name, np.nan) for step in stats]
        if not np.isnan(values).all():
            _smooth(axes, bins, values, color, label)


def _ratio_panel(axes: Axes, *, bins: Bins, stats: Sequence[StepStats]) -> None:
    least, mean, most = (
        np.array([step.training.get(f"ratio_{part}", np.nan) for step in stats]) for part in ("min", "mean", "max")
    )
    _band(axes, bins, least, most, "")
    _line(axes, bins, mean, BLUE, "", quiet=False)
    # One token's ratio may be in the thousands and another's nearly 0.
    if np.nanmax(most, initial=1) > 10 and np.nanmin(least, initial=1) > 0:
        axes.set_yscale("log")


def _episodes_panel(axes: Axes, *, bins: Bins, stats: Sequence[StepStats]) -> None:
    _smooth(axes, bins, [step.episodes["well_formed"] for step in stats], GREEN, "well-formed episodes")
    flat = [step.groups["flat"] / max(1, step.groups["total"]) for step in stats]
    _smooth(axes, bins, flat, VERMILION, "flat groups")


def _searches_panel(axes: Axes, *, bins: Bins, stats: Sequence[StepStats]) -> None:
    _smooth(axes, bins, [step.episodes["turns"] for step in stats], BLUE, "turns")
    _smooth(axes, bins, [step.episodes["searches"] for step in stats], ORANGE, "searches")


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


def _seconds_panel(axes: Axes, bins: Bins, stats: Sequence[StepStats]) -> None:
    base, phases = np.zeros(len(bins.x)), phase_seconds(stats)
    for name, column in phases.items():
        top = base + bins.means(column)
        x, (lower, upper) = _stairs(bins, base)[0], (_stairs(bins, base)[1], _stairs(bins, top)[1])
        axes.fill_between(x, lower, upper, color=PHASES.get(name, GREY), linewidth=0, label=name)
        base = top
    if phases:
        axes.legend(
            loc="lower right", bbox_to_anchor=(1, 1), ncols=len(phases), borderaxespad=0.2, handlelength=1, fontsize=11
        )
    axes.set(ylim=(0, None))
    axes.set_title("seconds of a step")
    _step_axis(axes, bins)


def _smooth(axes: Axes, bins: Bins, values: Sequence[float], color: str, label: str) -> None:
    """A line, and over it the running mean where there are enough steps."""
    reach = reach_of(len(values))
    _line(axes, bins, values, color, "" if reach else label, quiet=reach > 0)
    if reach:
        axes.plot(bins.x, bins.means(running_mean(values, reach)), color=color, lw=2, label=label or None)


def _line(axes: Axes, bins: Bins, values: Sequence[float] | Floats, color: str, label: str, *, quiet: bool) -> None:
    style: dict[str, Any] = {"lw": 1, "alpha": 0.4} if quiet else {"lw": 2}
    marker = "o" if len(bins.x) <= 20 else ""
    axes.plot(bins.x, bins.means(values), color=color, marker=marker, markersize=4, label=label or None, **style)


def _band(axes: Axes, bins: Bins, low: Floats, high: Floats, label: str, color: str = BLUE) -> None:
    """Fill from low to high; a single step gets a width of 0.1."""
    if len(bins.x) == 1:
        x, lower, upper = bins.x + np.array([-0.05, 0.05]), bins.means(low).repeat(2), bins.means(high).repeat(2)
    else:
        x, lower, upper = bins.x, bins.means(low), bins.means(high)
    axes.fill_between(x, lower, upper, color=color, alpha=0.16, linewidth=0, label=label or None)


def _stairs(bins: Bins, values: Floats) -> tuple[Floats, Floats]:
    """A line with one stair per bin. Example: bins from -.5 to .5 and .5 to 1.5 have x -.5, .5, .5, 1.5."""
    return bins.edges.repeat(2)[1:-1], values.repeat(2)


def _finish(axes: Axes, title: str, bins: Bins, *, last: bool) -> None:
    axes.set_title(title)
    if title in SHARE_PANELS:
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %" if share <= 1 else "")
    axes.margins(y=0.12)
    if axes.get_yscale() == "linear":
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    labels = len(axes.get_legend_handles_labels()[1])
    if labels:
        low, high = axes.get_ylim()
        taken = 0.15 * labels  # share of the height, so that the legend covers no line
        axes.set_ylim(low, low + (high - low) / (1 - taken))
        axes.legend(loc="upper right", fontsize=11, handlelength=1.2, borderaxespad=0, labelspacing=0.3)
    _step_axis(axes, bins, room=0.012)
    if not last:  # the panel below has the same axis
        axes.set_xlabel("")
        axes.tick_params(labelbottom=False)


def _step_axis(axes: Axes, bins: Bins, *, room: float = 0.0, until: float = 0.0) -> None:
    """Show the steps from edge to edge, at least up to `until`, with `room` on both sides for markers."""
    more = room * (bins.edges[-1] - bins.edges[0])
    axes.set(xlabel="step", xlim=(bins.edges[0] - more, max(bins.edges[-1], until) + more))
    if len(bins.x) == 1:
        axes.set_xticks(bins.x)
        axes.xaxis.set_major_formatter("{x:.0f}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))


def _room(axes: Axes, least: float) -> None:
    """Make the y-axis span at least this much, so that noise in a flat line does not look like an event."""
    low, high = axes.get_ylim()
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)


FIGURES: dict[str, Callable[[Sequence[StepStats]], Figure]] = {
    "rewards.png": rewards_figure,
    "reward_distribution.png": distribution_figure,
    "training.png": training_figure,
}


def draw_plots(run_dir: Path, stats: Sequence[StepStats]) -> None:
    """Write the plots into the run folder."""
    final = {version: row for version, row in read_evaluations(run_dir).items() if version > stats[-1].step}
    for name, figure in FIGURES.items():
        with mpl.rc_context(STYLE):
            save_figure(rewards_figure(stats, final) if name == "rewards.png" else figure(stats), run_dir / name)


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
