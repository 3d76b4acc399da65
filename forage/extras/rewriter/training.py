"""Training: PPO updates from the last checkpoint to the last step, and the record of each."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

from forage.data.splits import in_rounds
from forage.errors import UserError, first_line
from forage.extras.rewriter.actors import Actors, left_padded, with_padding
from forage.extras.rewriter.data import Row
from forage.extras.rewriter.options import Options, PPOOptions
from forage.extras.rewriter.ppo import PromptBatch, Training, make_optimizer, train_own
from forage.extras.rewriter.rewards import Episode, Scorer
from forage.extras.rewriter.trl_backend import train_trl
from forage.files import write_jsonl
from forage.manifest import plain
from forage.policy.checkpoint import load_checkpoint, save_checkpoint
from forage.processes import gathered, is_first, rank, world
from forage.runs import trackers
from forage.runs.plots import STYLE, draw_panel, save_figure
from forage.runs.trackers import Log, chosen, open_tracker


def train(options: Options, rows: list[Row], actors: Actors, tokenizer: Any, scorer: Scorer) -> None:
    """Run the updates that are left, after the newest checkpoint in state/."""
    norms: list[float] = []
    optimizer = make_optimizer(actors, options.actor.rate, norms)
    step, history = load_checkpoint(options.run_dir / "state", actors, optimizer) or (0, [])
    if step:
        print(f"resuming after update {step}")
    updates = options.max_steps - step
    if updates <= 0:
        return
    kind = chosen(options.report_to, trackers.REWRITER_ORDER) if is_first() else "none"
    with open_tracker(kind, options.run_dir, plain(options)) as log:
        recorder = Recorder(options, actors, optimizer, scorer, log, norms, history)
        training = Training(actors, optimizer, options.ppo, scorer, recorder.after_update)
        batches = batches_from(step, rows, options.ppo, actors.policy.pad_id, options.seed)
        try:
            if options.backend == "own":
                train_own(training, batches, updates)
            else:
                padded = with_padding(tokenizer)
                train_trl(training, batches, updates, padded_tokenizer=padded, run_dir=options.run_dir)
        except torch.OutOfMemoryError as error:
            raise UserError(f"out of memory ({first_line(error)}); go on with a smaller --micro-batch-size") from error


def batches_from(step: int, rows: Sequence[Row], options: PPOOptions, pad_id: int, seed: int) -> Iterator[PromptBatch]:
    """The prompts of each update that are this process's, those of one question side by side.

    Each update has its own random seed in each process, so a resumed run draws the same numbers.
    """
    share = options.batch_size // world()
    mine = slice(rank() * share, (rank() + 1) * share)
    while True:
        update_seed = (seed * 1_000_003 + step) * world() + rank()
        torch.manual_seed(update_seed)
        np.random.seed(update_seed)  # TRL draws the order of its epochs from numpy
        questions = in_rounds(rows, step, options.batch_size // options.num_rollouts, seed)
        chosen = [row for row in questions for _ in range(options.num_rollouts)]
        yield PromptBatch(chosen[mine], left_padded([row.prompt for row in chosen], pad_id)[mine])
        step += 1


@dataclass
class Recorder:
    """Prints and saves each update."""

    options: Options
    actors: Actors
    optimizer: torch.optim.Optimizer
    scorer: Scorer
    log: Log
    norms: list[float]
    """Gradient norms since the last update."""
    history: list[dict[str, float]]
    """The metrics of all updates so far."""
    started: float = field(default_factory=time.perf_counter)

    def after_update(self, figures: dict[str, float]) -> None:
        """Check, show and keep the figures of an update; save a checkpoint when one is due."""
        options, step = self.options, len(self.history) + 1
        metrics = {"step": step} | figures | {
            "episode": step * options.ppo.batch_size, "policy/entropy": figures["policy/entropy_avg"],
            "lr": options.actor.rate, "grad_norm": sum(self.norms) / len(self.norms),
            "seconds": time.perf_counter() - self.started,
        }  # fmt: skip
        bad = next((name for name, value in metrics.items() if not math.isfinite(value)), None)
        if bad:
            raise UserError(f"update {step}: {bad} is {metrics[bad]}; training diverged, lower --learning-rate")
        self.history.append(metrics)
        episodes = gathered(self.scorer.episodes)
        if is_first():
            self._keep(step, metrics, episodes)
        self.norms.clear()
        self.started = time.perf_counter()

    def _keep(self, step: int, metrics: dict[str, float], episodes: Sequence[Episode]) -> None:
        options = self.options
        self._print(step, metrics, episodes)
        write_jsonl(options.run_dir / "episodes" / f"{step:06d}.jsonl", episodes)
        write_jsonl(options.run_dir / "metrics.jsonl", self.history)
        draw_metrics(self.history, options.run_dir / "training.png")
        self.log(step, metrics)
        if step % options.save_every == 0 or step == options.max_steps:
            save_checkpoint(options.run_dir / "state", step, self.actors, self.optimizer, self.history)

    def _print(self, step: int, metrics: dict[str, float], episodes: Sequence[Episode]) -> None:
        first = (step - 1) * self.options.ppo.batch_size + 1
        for number, episode in enumerate(episodes, first):
            print(f"Episode {number}: Reward = {episode.reward:.3f}")
        print(
            f"update {step} of {self.options.max_steps}, {metrics['seconds']:.1f} s: "
            f"reward {metrics['objective/scores']:.3f}, KL {metrics['objective/kl']:.3f}, "
            f"entropy {metrics['policy/entropy']:.2f}, ratio {metrics['val/ratio']:.3f}, "
            f"policy loss {metrics['loss/policy_avg']:.3f}, value loss {metrics['loss/value_avg']:.3f}",
            flush=True,
        )


# Plots

# A panel's title, and its metrics with their labels.
PANELS: dict[str, dict[str, str]] = {
    "reward per episode": {"objective/scores": "reward", "objective/rlhf_reward": "reward minus KL penalty"},
    "KL to the untrained model, nats per episode": {"objective/kl": ""},
    "entropy per token, nats": {"policy/entropy": ""},
    "ratio to the sampling policy": {"val/ratio": "mean ratio", "policy/clipfrac_avg": "share clipped"},
    "policy loss": {"loss/policy_avg": ""},
    "value loss": {"loss/value_avg": ""},
}


def draw_metrics(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """The metrics by update."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, 9), layout="constrained")
        for axes, (title, lines) in zip(figure.subplots(3, 2).flat, PANELS.items(), strict=True):
            axes.set_title(title)
            draw_panel(axes, {int(row["step"]): row for row in rows}, lines)
        save_figure(figure, path)
