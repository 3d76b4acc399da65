"""Plots of a PPO run: reward, what is held against it, and what the updates did, out of its metrics alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from forage.runs.plots import BLUE, GREY, ORANGE, STYLE, VERMILION, reach_of, running_mean, save_figure

# Title, and the figures in it with their names.
PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("reward of an episode", {"objective/scores": "reward", "objective/rlhf_reward": "reward less KL penalty"}),
    ("KL to the untrained model, nats of an episode", {"objective/kl": "KL"}),
    ("entropy of a token, nats", {"policy/entropy": "entropy"}),
    ("ratio to the policy that sampled", {"val/ratio": "mean ratio", "policy/clipfrac_avg": "share clipped"}),
    ("policy's loss", {"loss/policy_avg": "loss"}),
    ("value model's loss", {"loss/value_avg": "loss"}),
)


def draw_metrics(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Each update a dot, its neighbours' mean a line."""
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
