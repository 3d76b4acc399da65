"""Run: the state of a training run, in memory and in its checkpoint."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forage.agent.options import AgentSettings
from forage.data.records import read_answerable
from forage.errors import UserError
from forage.grpo.guidance import Guide, open_guide
from forage.grpo.learner import Learner
from forage.grpo.options import TrainOptions
from forage.grpo.update import TrainingBatch
from forage.runs.phases import Phases
from forage.runs.stats import StepStats, read_stats


@dataclass
class Run:
    """A run between two steps."""

    options: TrainOptions
    settings: AgentSettings
    step: int
    spreads: dict[str, float]
    """By question, the standard deviation of its last group's rewards."""
    guarded_from: int
    """The first step that the guards look at: the one after the last rollback."""
    rollbacks: int
    history: list[StepStats]
    questions: list[str]
    eval_questions: list[str]
    guide: Guide
    phases: Phases = field(default_factory=Phases)

    def checkpoint_fields(self) -> dict[str, Any]:
        """The fields that a checkpoint saves."""
        return {"spreads": self.spreads, "guarded_from": self.guarded_from, "rollbacks": self.rollbacks}

    def after(self, stats: StepStats, batch: TrainingBatch) -> None:
        """Move on by one step."""
        self.step += 1
        self.history.append(stats)
        for question, rewards in batch.rewards_by_question().items():
            self.spreads[question] = float(np.std(rewards))


def open_run(options: TrainOptions, settings: AgentSettings, learner: Learner) -> Run:
    """Resume the run from its last checkpoint, or start a new one."""
    step, saved = learner.load(options.run_dir / "state") or (0, {"spreads": {}, "guarded_from": 0, "rollbacks": 0})
    history = [stats for stats in read_stats(options.run_dir) if stats.step < step]
    train_questions = [question.id for question in read_answerable(options.rollout.data / "train.jsonl")]
    held_out = [question.id for question in read_answerable(options.rollout.data / "eval.jsonl")]
    chosen = random.Random(options.rollout.seed).sample(held_out, min(options.eval_questions, len(held_out)))
    if options.eval_every and not chosen:
        raise UserError(f"{options.rollout.data}/eval.jsonl has no question to evaluate on; give --eval-every 0")
    guide = open_guide(options.guidance, options.rollout.seed, train_questions)
    if step:
        print(f"resuming from step {step}")
    return Run(
        options, settings, step, **saved, history=history, questions=train_questions, eval_questions=chosen, guide=guide
    )
