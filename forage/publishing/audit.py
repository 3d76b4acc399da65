"""Audit: a finished run comes out again from its episodes, or the first step that doesn't is named.

    python -m forage.publishing.audit runs/a                 every step
    python -m forage.publishing.audit runs/a --until 3       the first three

Rewards are computed again, and each update is made again from the first adapter on, without sampling: a step must come
to the statistics and the adapter that the run has. Where processor and packages are those of the run, and one process
trained, they must be equal; else an adapter may be off by a twentieth of what its step changed, and the most is said.
Not looked at: whether a seed gives an episode's tokens (forage/extras/gateway/replay.py samples one again), credit by
words, and the evaluation at a step where the run was to end before --max-steps was raised.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from safetensors.numpy import load_file

from forage.agent.episode import Episode
from forage.agent.options import AGENT_FILE
from forage.agent.rewards import MEASURED
from forage.agent.tools import SCRIPT
from forage.arguments import POSITIONAL, resumed, run_script
from forage.engines.base import Engine, EngineOptions
from forage.errors import UserError
from forage.grpo.options import TrainOptions
from forage.grpo.players import Play
from forage.manifest import read_manifest
from forage.policy.adapters import adapter_path, sampled_by, served_name, weights_digest
from forage.policy.manifest import read_policy_manifest
from forage.rollout.agreement import RUN_FILE, read_run
from forage.rollout.plans import Plan, Played
from forage.rollout.rollout import Rollout, open_search, rollout_with
from forage.runs.run_folder import environment
from forage.runs.stats import Phases, StepStats, read_stats, reproducible

ROUNDING = 1e-6  # of a reward
BESIDE = 0.05  # of what a step changed, where another processor or other packages round


@dataclass(frozen=True)
class Options:
    """The run to audit."""

    run_dir: Annotated[Path, POSITIONAL]
    """Run folder of grpo_train.py."""
    until: int = 0
    """Steps to make again, from the first; 0: all."""
    policy: Path | None = None
    """The run's policy, if it has been moved."""
    data: Path | None = None
    """The run's data, if they have been moved."""


def main(options: Options) -> None:
    run_dir, begun = options.run_dir, read_run(options.run_dir)
    if begun is None:
        raise UserError(f"{run_dir} has no {RUN_FILE}; name a run folder of grpo_train.py")
    steps = read_stats(run_dir)
    until = options.until or len(steps)
    if not until or [each.step for each in steps[:until]] != list(range(until)):
        raise UserError(f"{run_dir} lacks statistics of some of its first {until} steps")
    rates = [each.training["learning_rate"] for each in steps[:until]]
    if other := next((step for step, rate in enumerate(rates) if rate != rates[0]), 0):
        raise UserError(f"{run_dir} went on with another --learning-rate at step {other}; give --until {other}")
    moved = [f"--{name}={path}" for name in ("policy", "data") if (path := getattr(options, name))]
    given = resumed(TrainOptions, ["--run-dir", str(run_dir), *moved], lambda each: each.run_dir / RUN_FILE)
    theirs, here = read_manifest(run_dir / "environment.json", "put it back"), environment()
    if read_policy_manifest(given.rollout.policy).dtype == "auto" and theirs.get("auto", here["auto"]) != here["auto"]:
        raise UserError(
            f"{run_dir} was trained in {theirs['auto']}, and this machine computes in {here['auto']}; audit it on "
            f"another ({theirs['processor']})"
        )
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / run_dir.name
        again.mkdir()
        for name in (RUN_FILE, AGENT_FILE):
            shutil.copy(run_dir / name, again)
        audit = Audit(run_dir, again, steps, same=given.sharding == "none" and theirs == here)
        rewards = importlib.import_module(SCRIPT).get_reward_functions
        with suppress(Enough):
            importlib.import_module("grpo_train").main(
                alone(given, again, rates[0]), rewards, partial(Stored, audit, until)
            )
        audit.check(until)
    rounding = f"come out again up to rounding, {audit.furthest:.2g} of a step's change at most"
    print(f"audited: {until} of {len(steps)} steps {'are equal' if audit.same else rounding}")


def alone(given: TrainOptions, run_dir: Path, learning_rate: float) -> TrainOptions:
    """The run's options for one process that samples nothing, kept where they make a difference."""
    update = replace(given.update, learning_rate=learning_rate)
    rollout = replace(given.rollout, engine=EngineOptions(engine="local"))
    guard = replace(given.guard, on_collapse="rollback" if given.guard.on_collapse == "rollback" else "warn")
    return replace(
        given, rollout=rollout, update=update, guard=guard, run_dir=run_dir, keep_adapters=0, report_to="none",
        sharding="none", sequence_parallel=1, offload="none", vllm_sleep=False,
    )  # fmt: skip


class Enough(Exception):
    """All that was asked for has come out again."""


class Audit:
    """Compares a run with what is made of it again, step by step."""

    def __init__(self, run_dir: Path, again: Path, steps: Sequence[StepStats], *, same: bool) -> None:
        self.run_dir, self.again, self.steps = run_dir, again, steps
        self.same = same
        """Whether everything must be equal to the last bit."""
        self.furthest = 0.0
        """Share of a step's change by which an adapter was off."""
        self.checked = -1

    def check(self, version: int) -> None:
        """Refuse an adapter, or statistics of the step that it comes from, other than the run's."""
        if version == self.checked:
            return
        there, made = (adapter_path(folder, version) for folder in (self.run_dir, self.again))
        if there.exists() and weights_digest(there) != weights_digest(made):
            changed = distance(made, adapter_path(self.again, version - 1)) if version else 0.0
            share = distance(there, made) / changed if changed else np.inf
            self.furthest = max(self.furthest, share)
            if self.same or share > BESIDE:
                rounds = "; a run resumed with another --token-budget rounds otherwise" if share <= BESIDE else ""
                raise UserError(
                    f"{there} is not what the steps before come to: it is {share:.2g} of the last one's change away"
                    + rounds
                )
        if version:
            ours, theirs = (reproducible(each[version - 1]) for each in (read_stats(self.again), self.steps))
            if not ours["evaluation"]:
                theirs["evaluation"] = None
            differing = [name for name in ours if ours[name] != theirs[name]]
            if differing and (self.same or differing != ["training"]):
                raise UserError(f"step {version - 1}: the run's statistics have another {', '.join(differing)}")
            print(f"audit: step {version - 1} comes out again")
        self.checked = version

    def check_rewards(self, rollout: Rollout, plan: Plan, episodes: Sequence[Episode]) -> None:
        """Refuse an episode whose rewards are not what the functions give it."""
        questions = [rollout.by_id[plan.split][episode.question_id] for episode in episodes]
        for old, new in zip(episodes, rollout.reward(episodes, questions), strict=True):
            for name, value in new.rewards.items():
                if name != MEASURED and abs(old.rewards.get(name, np.inf) - value) > ROUNDING:
                    raise UserError(
                        f"{plan.name}: episode {old.id} has {name} {old.rewards.get(name)}, and earns {value}"
                    )


class Stored(Play):
    """A finished run's episodes in the place of new ones."""

    def __init__(self, audit: Audit, until: int, options: TrainOptions, *rest: Any) -> None:
        super().__init__(options.run_dir)
        searched = open_search(options.rollout, rest[0])  # the settings
        self.audit, self.until, self.rollout = audit, until, rollout_with(Engine(), *searched, options.rollout, *rest)

    def played(self, plan: Plan, phases: Phases) -> list[Episode]:
        if plan.split == "train" and plan.version == self.until:
            raise Enough
        self.audit.check(plan.version)
        episodes = Played(self.audit.run_dir, plan).gathered()
        if episodes is None:
            raise UserError(f"{self.audit.run_dir}/episodes/{plan.name} lacks episodes that the run's plan asks for")
        self.audit.check_rewards(self.rollout, plan, episodes)
        if self.audit.same:
            return episodes
        here = {name: self.named_here(name) for name in {each.adapter for each in episodes}}
        return [replace(each, adapter=here[each.adapter]) for each in episodes]

    def named_here(self, name: str) -> str:
        """An adapter's name with the digest that it has here, if it was the run's."""
        version, digest = sampled_by(name)
        theirs, ours = (weights_digest(adapter_path(run, version)) for run in (self.audit.run_dir, self.run_dir))
        return served_name(self.run_dir.name, version, ours) if not theirs or theirs.startswith(digest) else name


def distance(one: Path, other: Path) -> float:
    """Of two adapters: the root of the squares of what their weights differ by."""
    first, second = (load_file(folder / "adapter_model.safetensors") for folder in (one, other))
    return float(sum(np.square(first[name] - second[name]).sum() for name in first) ** 0.5)


if __name__ == "__main__":
    run_script(main, __doc__)
