"""Shares: every training process plays its share of a plan, with an engine of its own.

The first process divides a plan's questions in turn, sends each process its share, and reads all episodes from the run
folder once everyone has written. Shares depend on the plan and the number of processes alone. Claims, by which workers
share a plan, would give the quicker process more; then chance would decide which episodes are sampled together, and so
how sums are rounded, and a resumed run would not be the same bit for bit. For the same reason a share that was left
half-played is played again as a whole, and one that was finished is kept.

Spare questions, which replace flat groups, are divided in the same way once all groups before them are there.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from forage.agent.episode import Episode, episode_files
from forage.errors import UserError
from forage.grpo.learner import Learner
from forage.heartbeat import beat
from forage.policy.adapters import version_name, versions
from forage.rollout.plans import Plan, Played
from forage.rollout.rollout import Rollout
from forage.rollout.worker import load_newest, play_plan
from forage.rollout.worker_name import TRAINER
from forage.runs.phases import Phases

SEEN_WITHIN = 60.0  # seconds until a shared file system shows every process what another has written


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
    return [
        Share(f"{TRAINER}-{rank + 1}of{world}{again}", tuple(questions[rank::world])) for rank in range(world)
    ]  # fmt: skip


@dataclass(frozen=True)
class SharedPlay:
    """Plays plans in all processes: the first calls it, the others follow."""

    runner: asyncio.Runner
    rollout: Rollout
    run_dir: Path
    learner: Learner

    def __call__(self, plan: Plan, phases: Phases) -> list[Episode]:
        clear_other_divisions(Played(self.run_dir, plan), self.learner.world)
        asked, go = dict[str, None](), 1
        while new := [name for name in self._wanted(plan, asked) if name not in asked]:
            self._divide_and_play(plan, divide(new, self.learner.world, go))
            asked, go = asked | dict.fromkeys(new), go + 1
        return Played(self.run_dir, plan).episodes()

    def _wanted(self, plan: Plan, asked: dict[str, None]) -> tuple[str, ...]:
        """The questions to play, given the groups of those asked for. Others that a killed run left don't count yet."""
        groups = Played(self.run_dir, plan).groups() if asked else {}
        return plan.wanted({name: group for name, group in groups.items() if name in asked})

    def _divide_and_play(self, plan: Plan, shares: Sequence[Share]) -> None:
        """Let each process play its share, unless it has been played already."""
        left = [share if Played(self.run_dir, share.of(plan)).missing() else None for share in shares]
        if not any(left):
            return
        for share in filter(None, left):
            clear_half(Played(self.run_dir, plan), share.worker)
        self.learner.broadcast((plan, left))
        self._play_own(plan, left)
        asked = replace(plan, questions=tuple(name for share in shares for name in share.questions), spare=())
        wait_until_seen(
            lambda: not Played(self.run_dir, asked).missing(), f"{self.run_dir} lacks episodes of {plan.name}"
        )

    def _play_own(self, plan: Plan, left: Sequence[Share | None]) -> None:
        """Play this process's share, and wait until the others have played theirs."""
        if share := left[self.learner.rank]:
            self.runner.run(play_share(self.rollout, self.run_dir, plan, share, shown=self.learner.rank == 0))
        self.learner.all_gather(None)

    def follow(self) -> None:
        """Play what the first process hands out, until it ends the step."""
        while handed_out := self.learner.broadcast(None):
            self._play_own(*handed_out)

    def end(self) -> None:
        """Let the others go on: nothing more is played in this step."""
        self.learner.broadcast(None)


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
    wait_until_seen(
        lambda: versions(run_dir)[-1:] >= [plan.version], f"{run_dir} lacks adapter {version_name(plan.version)}"
    )
    await load_newest(rollout, run_dir)
    part = f", share {share.worker.removeprefix(f'{TRAINER}-')}"
    await play_plan(rollout, run_dir, share.of(plan), share.worker, part=part, shown=shown)


def wait_until_seen(there: Callable[[], bool], otherwise: str, seconds: float = SEEN_WITHIN) -> None:
    """Wait for what another process has written, perhaps on another machine."""
    waiting_since = time.monotonic()
    while not there():
        beat()
        if time.monotonic() - waiting_since > seconds:
            raise UserError(
                f"{otherwise}, though another training process wrote it; put the run folder where all processes see "
                "it, or give --no-share-rollouts"
            )
        time.sleep(0.1)
