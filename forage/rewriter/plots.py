"""Plots of a PPO run, drawn from its metrics: reward, KL, entropy and what the updates did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from forage.runs.plots import BLUE, GREY, ORANGE, STYLE, VERMILION, reach_of, running_mean, save_figure

# A panel's title, and its metrics with their labels.
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("reward per episode", {"objective/scores": "reward", "objective/rlhf_reward": "reward minus KL penalty"}),
    ("KL to the untrained model, nats per episode", {"objective/kl": "KL"}),
    ("entropy per token, nats", {"policy/entropy": "entropy"}),
    ("ratio to the sampling policy", {"val/ratio": "mean ratio", "policy/clipfrac_avg": "share clipped"}),
    ("policy loss", {"loss/policy_avg": "loss"}),
    ("value loss", {"loss/value_avg": "loss"}),
)


def draw_metrics(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """A dot for each update, and a line for the running mean."""
    steps, reach = [row["step"] for row in rows], reach_of(len(rows))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 9), layout="constrained")
        for axes, (title, names) in zip(figure.subplots(3, 2).flat, PANELS, strict=True):
            for (name, label), color in zip(names.items(), (BLUE, ORANGE, VERMILION), strict=False):
                values = [row[name] for row in rows]
                axes.plot(steps, values, ".", color=color, alpha=0.35)
                axes.plot(steps, running_mean(values, reach), color=color, label=label)
            axes.set_title(title)
            axes.set_xlabel("updates", color=GREY)
            if len(names) > 1:
                axes.legend()
        save_figure(figure, path)
