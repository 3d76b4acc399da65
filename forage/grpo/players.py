"""Play: where a plan's episodes come from: this process, all training processes, or workers on the same run folder.

Every training process calls the same methods and gets the same episodes; what the first one does alone is in here.
"""

from __future__ import annotations

import asyncio
import gc
import io
import shutil
import time
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from forage.agent.combination import MakeRewards
from forage.agent.episode import Episode, episode_files
from forage.agent.options import AgentSettings
from forage.engines.choice import settled, with_key
from forage.errors import UserError
from forage.grpo.learner import Learner
from forage.grpo.options import TrainOptions
from forage.heartbeat import beat
from forage.policy.adapters import version_name, versions
from forage.rollout.claims import TRAINER
from forage.rollout.plans import Plan, Played
from forage.rollout.rollout import Rollout, load_newest, open_rollout, play_plan
from forage.runs.phases import Phases

SEEN_WITHIN = 60.0  # seconds until a shared file system shows every process what another has written


class Play:
    """Gives every process a plan's episodes, which the first one gets by `play_alone`."""

    def __init__(self, run_dir: Path, learner: Learner) -> None:
        self.run_dir, self.learner = run_dir, learner

    def wake(self, phases: Phases) -> None:
        """Be ready to play."""

    def play(self, plan: Plan, phases: Phases) -> list[Episode]:
        episodes: list[Episode] = self.learner.broadcast(
            self.play_alone(plan, phases) if self.learner.rank == 0 else None
        )
        return episodes

    def play_alone(self, plan: Plan, phases: Phases) -> list[Episode]:
        """In the first process. By default workers play, and it waits for them."""
        played = Played(self.run_dir, plan)
        if (episodes := played.gathered()) is not None:
            return episodes
        with phases("rollout_wait"):
            return wait_until_played(played)

    def sleep(self, phases: Phases) -> None:
        """Nothing is played until `wake`."""

    def close(self) -> None:
        """The run is over."""


def open_play(
    options: TrainOptions, settings: AgentSettings, make_rewards: MakeRewards, embedder: str, learner: Learner
) -> Play:
    lead = learner.rank == 0
    if options.rollouts == "service":
        return Play(options.run_dir, learner)
    engine = learner.broadcast(settled(with_key(options.rollout.engine)) if lead else None)
    shares = learner.world > 1 and engine.engine == "local"
    if not lead and not shares:
        return Play(options.run_dir, learner)
    options = replace(options, rollout=replace(options.rollout, engine=engine))
    kind = SharedPlay if shares else OwnPlay
    return kind(options, settings, make_rewards, embedder, learner)


def wait_until_played(played: Played, poll: float = 0.5, say_every: float = 60) -> list[Episode]:
    said = time.monotonic()
    while (episodes := played.gathered()) is None:
        beat()
        time.sleep(poll)
        if time.monotonic() - said > say_every:
            said, missing, name = time.monotonic(), len(played.missing()), played.plan.name
            print(f"{name}: waiting for workers to play {missing} questions; is grpo_rollout.py running?")
    return episodes


class OwnPlay(Play):
    """The first process plays, with an engine of its own; with --vllm-sleep, the server sleeps between steps."""

    def __init__(
        self, options: TrainOptions, settings: AgentSettings, make_rewards: MakeRewards, embedder: str, learner: Learner
    ) -> None:
        super().__init__(options.run_dir, learner)
        self.sleeps = options.vllm_sleep
        self.runner = asyncio.Runner()  # one event loop for all steps: connections and tasks can't move to another
        self.opened = open_rollout(options.rollout, settings, make_rewards, embedder, sleeps=self.sleeps)
        self.give_back_memory()
        with nullcontext() if learner.rank == 0 else redirect_stdout(io.StringIO()):  # the first says it for all
            self.rollout: Rollout = self.runner.run(self.opened.__aenter__())

    def wake(self, phases: Phases) -> None:
        if self.sleeps:
            with phases("wake"):
                self.give_back_memory()
                self.runner.run(self.rollout.engine.wake())

    def play_alone(self, plan: Plan, phases: Phases) -> list[Episode]:
        return self.runner.run(play_here(self.rollout, self.run_dir, plan))

    def sleep(self, phases: Phases) -> None:
        if self.sleeps:
            with phases("sleep"):
                self.runner.run(self.rollout.engine.sleep())

    def close(self) -> None:
        self.give_back_memory()
        self.runner.run(self.opened.__aexit__(None, None, None))
        self.runner.close()

    def give_back_memory(self) -> None:
        """Leave the GPU all memory that this process has no use for now, as a server is about to wake there."""
        if self.sleeps and torch.cuda.is_available():
            gc.collect()  # takes a second, so not for nothing
            torch.cuda.empty_cache()


async def play_here(rollout: Rollout, run_dir: Path, plan: Plan) -> list[Episode]:
    played = Played(run_dir, plan)
    if played.missing():
        if rollout.engine.exact:  # half a plan would be sampled in different batches, so rounded differently
            shutil.rmtree(played.folder, ignore_errors=True)
            played = Played(run_dir, plan)
        await load_newest(rollout, run_dir)
        await play_plan(rollout, run_dir, plan, TRAINER)
    return played.episodes()


# Shares


@dataclass(frozen=True)
class Share:
    """What one process plays in one go."""

    worker: str
    questions: tuple[str, ...]

    def of(self, plan: Plan) -> Plan:
        return replace(plan, questions=self.questions, spare=())


def divide(questions: Sequence[str], world: int, go: int = 1) -> list[Share]:
    """Each process's share, in turn. `go` counts how often the plan has been divided: again for spare questions.

    Example: (a, b, c) for 2 processes: trainer-1of2 plays (a, c), trainer-2of2 plays (b,).
    """
    again = f"-{go}" if go > 1 else ""
    return [Share(f"{TRAINER}-{rank + 1}of{world}{again}", tuple(questions[rank::world])) for rank in range(world)]


class SharedPlay(OwnPlay):
    """Every process plays its share of a plan, with an engine of its own.

    Shares depend on the plan and the number of processes alone. Claims, by which workers share a plan, would give the
    quicker process more; then chance would decide which episodes are sampled together, and so how sums are rounded, and
    a resumed run would not be the same bit for bit. For the same reason a share that was left half-played is played
    again as a whole, and one that was finished is kept. Spare questions, which replace flat groups, are divided in the
    same way once all groups before them are there.
    """

    def play(self, plan: Plan, phases: Phases) -> list[Episode]:
        asked, go, lead = dict[str, None](), 1, self.learner.rank == 0
        if lead:
            clear_other_divisions(Played(self.run_dir, plan), self.learner.world)
        while handed_out := self.learner.broadcast(self.hand_out(plan, asked, go) if lead else None):
            shares, left = handed_out
            if share := left[self.learner.rank]:
                self.runner.run(play_share(self.rollout, self.run_dir, plan, share, shown=lead))
            self.learner.all_gather(None)  # until all have played theirs
            asked, go = asked | dict.fromkeys(name for share in shares for name in share.questions), go + 1
            if lead:
                there = Played(self.run_dir, replace(plan, questions=tuple(asked), spare=()))
                wait_until_seen(there, f"{self.run_dir} lacks episodes of {plan.name}")
        episodes: list[Episode] = self.learner.broadcast(Played(self.run_dir, plan).episodes() if lead else None)
        return episodes

    def hand_out(self, plan: Plan, asked: dict[str, None], go: int) -> tuple[list[Share], list[Share | None]] | None:
        """The shares of what is wanted now and was not asked for, and those still to be played; None in the end."""
        groups = Played(self.run_dir, plan).groups() if asked else {}  # others that a killed run left don't count yet
        wanted = plan.wanted({name: group for name, group in groups.items() if name in asked})
        new = [name for name in wanted if name not in asked]
        if not new:
            return None
        shares = divide(new, self.learner.world, go)
        left = [share if Played(self.run_dir, share.of(plan)).missing() else None for share in shares]
        for share in filter(None, left):
            clear_half(Played(self.run_dir, plan), share.worker)
        return shares, left


def clear_other_divisions(played: Played, world: int) -> None:
    """Remove what other than so many processes left of a plan; a plan that is complete is kept."""
    if not played.missing():
        return
    owners = {path.name.partition(".")[0] for path in episode_files(played.folder)}
    owners |= {path.read_text() for path in played.folder.glob("claims*/[!.]*")}
    names = [share.worker for share in divide((), world)]
    if not all(any(f"{owner}-".startswith(f"{name}-") for name in names) for owner in owners):
        shutil.rmtree(played.folder)


def clear_half(played: Played, worker: str) -> None:
    """Remove what is there of a share: the rest of it would be sampled in other batches, so rounded differently."""
    (played.folder / f"{worker}.jsonl").unlink(missing_ok=True)
    for half_made in played.claims.glob(".*"):  # no process is claiming anything now
        half_made.unlink()


async def play_share(rollout: Rollout, run_dir: Path, plan: Plan, share: Share, *, shown: bool) -> None:
    waiting_since = time.monotonic()
    while versions(run_dir)[-1:] < [plan.version]:
        wait_on(waiting_since, f"{run_dir} lacks adapter {version_name(plan.version)}")
    await load_newest(rollout, run_dir)
    part = f", share {share.worker.removeprefix(f'{TRAINER}-')}"
    await play_plan(rollout, run_dir, share.of(plan), share.worker, part=part, shown=shown)


def wait_until_seen(played: Played, otherwise: str) -> None:
    """Wait for what other processes have written, perhaps on other machines."""
    waiting_since = time.monotonic()
    while played.missing():
        wait_on(waiting_since, otherwise)


def wait_on(since: float, otherwise: str) -> None:
    beat()
    if time.monotonic() - since > SEEN_WITHIN:
        raise UserError(
            f"{otherwise}, though another training process wrote it; put the run folder where all processes see it"
        )
    time.sleep(0.1)
