"""Run: the state of a training run between two steps, in memory and in its checkpoint, and what it plans."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from forage.data.splits import in_rounds
from forage.grpo.options import TrainOptions
from forage.policy.adapters import DIGITS, adapter_path, sampled_by, version_name, weights_digest
from forage.rollout.agreement import RunManifest
from forage.rollout.plans import Plan, plan_of, plan_path, read_plan, write_plan
from forage.runs.phases import Phases
from forage.runs.stats import StepStats

KEPT = ("guarded_from", "rollbacks", "digests")  # fields of a run that a checkpoint saves


@dataclass
class Run:
    """A run between two steps."""

    options: TrainOptions
    step: int
    guarded_from: int
    """The first step that the guards look at: the one after the last rollback."""
    rollbacks: int
    history: list[StepStats]
    questions: list[str]
    eval_questions: list[str]
    manifest: RunManifest
    lead: bool = True
    """Whether this process writes the run's files."""
    digests: dict[str, str] = field(default_factory=dict)
    """By adapter, such as v000007, the digest of the weights that this run published."""
    phases: Phases = field(default_factory=Phases)

    def published(self, name: str) -> bool:
        """Whether episodes of an adapter of this name, such as run-v000007-0123abcd, are this run's own."""
        version, digest = sampled_by(name)
        if version > self.step:
            return False
        weights = self.digests.get(version_name(version)) or weights_digest(adapter_path(self.options.run_dir, version))
        # A worker may have played before the trainer published its first adapter.
        start = self.manifest.adapter_weights if version == 0 else ""
        return digest in {known[:DIGITS] for known in (weights, start) if known}


def plan_step(run: Run, step: int) -> Plan:
    """A step's questions, and spare ones to replace groups that turn out flat."""
    options, rollout = run.options, run.options.rollout
    plan = replace(
        plan_of(rollout, run.questions, step),
        oldest=max(run.guarded_from, step - options.max_staleness),
        credit=options.update.credit,
        word_cost=options.update.word_cost,
    )
    spare = in_rounds(run.questions, step, min(options.replace_flat, len(run.questions)), rollout.seed + 1)
    return replace(plan, spare=tuple(name for name in dict.fromkeys(spare) if name not in plan.questions))


def write_plans(run: Run) -> Plan:
    """Write plans for this step and those that workers may play ahead; return this step's.

    One that was written before a rollback, or with a higher --max-staleness, now asks for episodes of newer adapters.
    """
    options = run.options
    for step in range(run.step, min(run.step + options.max_staleness + 1, options.max_steps)) if run.lead else ():
        path = plan_path(options.run_dir, f"{step:06d}")
        plan = plan_step(run, step)
        if not path.exists() or read_plan(path).oldest < plan.oldest:
            write_plan(options.run_dir, plan)
    return plan_step(run, run.step)


def plan_evaluation(run: Run) -> Plan:
    return Plan(
        f"{run.step:06d}-eval", run.step, tuple(run.eval_questions), split="eval", num_rollouts=1,
        temperature=run.options.eval_temperature, seed=run.options.rollout.seed, oldest=run.step,
    )  # fmt: skip


def checkpoint_fields(run: Run, fixed: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint saves, with the options that may not change."""
    return {name: getattr(run, name) for name in ("step", *KEPT)} | {"options": fixed}
