"""Play: where a plan's episodes come from: the first training process, or workers on the same run folder.

Every training process calls the same methods and gets the same episodes; what the first one does alone is in here.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.agent.rewards import MakeRewards
from forage.data.splits import Splits
from forage.grpo.options import TrainOptions
from forage.heartbeat import beat
from forage.processes import first_alone, is_first
from forage.rollout.agreement import check_opened, read_run
from forage.rollout.plans import Plan, Played
from forage.rollout.rollout import Rollout, open_rollout, play_alone
from forage.runs.stats import Phases


class Play:
    """How a training process gets episodes. As it stands, for all but the first: they receive what that one plays."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def wake(self, phases: Phases) -> None:
        """Be ready to play."""

    def play(self, plan: Plan, phases: Phases) -> list[Episode]:
        return first_alone(self.played, plan, phases)

    def played(self, plan: Plan, phases: Phases) -> list[Episode]:
        """The episodes that the first process has for all."""
        raise NotImplementedError

    def sleep(self, phases: Phases) -> None:
        """Nothing is played until `wake`."""

    def plain_rag(self, names: Sequence[str], measure: str) -> dict[str, float]:
        """By held-out question, what a search for the question itself finds, where this process has a store."""
        return {}

    def close(self) -> None:
        """The run is over."""


def open_play(
    options: TrainOptions, settings: AgentSettings, make_rewards: MakeRewards, questions: Splits, embedder: str
) -> Play:
    if not is_first():
        return Play(options.run_dir)
    if options.rollouts == "service":
        return WorkersPlay(options.run_dir)
    return OwnPlay(options, settings, make_rewards, questions, embedder)


class WorkersPlay(Play):
    """Workers on the same run folder play, and the first process waits for them."""

    def played(self, plan: Plan, phases: Phases) -> list[Episode]:
        played = Played(self.run_dir, plan)
        if (episodes := played.gathered()) is None:
            with phases("rollout_wait"):
                episodes = wait_until_played(played)
        return episodes


def wait_until_played(played: Played) -> list[Episode]:
    said = time.monotonic()
    while (episodes := played.gathered()) is None:
        beat()
        time.sleep(0.5)
        if time.monotonic() - said > 60:
            said, missing, name = time.monotonic(), len(played.missing()), played.plan.name
            print(f"{name}: waiting for workers to play {missing} questions; is grpo_rollout.py running?")
    return episodes


class OwnPlay(Play):
    """The first process plays, with an engine of its own; with --vllm-sleep, the server sleeps between steps."""

    def __init__(
        self, options: TrainOptions, settings: AgentSettings, make_rewards: MakeRewards, questions: Splits,
        embedder: str,
    ) -> None:  # fmt: skip
        super().__init__(options.run_dir)
        self.sleeps = options.vllm_sleep
        self.runner = asyncio.Runner()  # one event loop for all steps: connections and tasks can't move to another
        self.opened = open_rollout(options.rollout, settings, make_rewards, questions, embedder, sleeps=self.sleeps)
        self.give_back_memory()
        self.rollout: Rollout = self.runner.run(self.opened.__aenter__())
        check_opened(self.rollout.searcher.store, read_run(options.run_dir))

    def wake(self, phases: Phases) -> None:
        if self.sleeps:
            with phases("wake"):
                self.give_back_memory()
                self.runner.run(self.rollout.engine.wake())

    def played(self, plan: Plan, phases: Phases) -> list[Episode]:
        return self.runner.run(play_alone(self.rollout, self.run_dir, plan))

    def sleep(self, phases: Phases) -> None:
        if self.sleeps:
            with phases("sleep"):
                self.runner.run(self.rollout.engine.sleep())

    def plain_rag(self, names: Sequence[str], measure: str) -> dict[str, float]:
        return self.runner.run(self.rollout.plain_rag(names, measure))

    def close(self) -> None:
        self.give_back_memory()
        self.runner.run(self.opened.__aexit__(None, None, None))
        self.runner.close()

    def give_back_memory(self) -> None:
        """Leave the GPU all memory that this process has no use for now, as a server is about to wake there."""
        if self.sleeps:
            if torch.cuda.is_available():
                gc.collect()  # takes a second, so not for nothing
            torch.cuda.empty_cache()
