"""Worker: plays a plan's questions, alone or beside other workers on the same run folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from safetensors import SafetensorError

from forage.agent.combination import MakeRewards
from forage.agent.options import AGENT_FILE
from forage.data.records import Question
from forage.errors import UserError
from forage.heartbeat import beat
from forage.policy.adapters import adapter_path, served_name, versions, weights_digest, whole_digest
from forage.policy.card import read_policy_card
from forage.rollout.claims import LEASE, Claims
from forage.rollout.options import RUN_FILE, RolloutOptions, WorkerOptions
from forage.rollout.plans import Plan, Played, open_plans, plan_of, plan_path, read_plan, write_plan
from forage.rollout.play_options import PlayOptions
from forage.rollout.playing import EpisodeWriter, play_all
from forage.rollout.rollout import Rollout, open_rollout
from forage.rollout.run_card import Part, RunCard, adapter_of, disagreement, make_run_card, read_run_card
from forage.rollout.view import RolloutView
from forage.rollout.waits import Waits, waits_path
from forage.rollout.worker_name import named_worker
from forage.store.opening import card_at

FINISHED = "finished"  # this file in the run folder says that the trainer will plan nothing more
SEEN_WITHIN = 120.0  # seconds until what another machine wrote can be seen here; NFS's longest by default is 60
WAYS_OUT: dict[Part, str] = {
    "policy": "give this worker the trainer's --policy",
    "data": "give this worker the trainer's --data",
    "embedder": "give this worker the trainer's --data and its embedder",
    "tools": "start this worker with the trainer's grpo_rollout.py",
    "rewards": "start this worker with the trainer's grpo_rollout.py",
}


async def play_one_step(given: PlayOptions, worker: WorkerOptions, make_rewards: MakeRewards) -> None:
    """Play one step's episodes with the run's newest adapter, or with the policy's own if the run has none.

    The plan is written down: by it, the trainer will know whether these are the episodes that it wants.
    """
    run_dir = worker.run_dir
    async with open_worker(given, worker, make_rewards) as (rollout, name):
        step = versions(run_dir)[-1] if versions(run_dir) else 0
        await load_newest(rollout, run_dir)
        plan = plan_of(rollout.options, list(rollout.by_id["train"]), step)
        keep_plan(run_dir, plan)
        await play_plan(rollout, run_dir, plan, name, poll=worker.poll)


def keep_plan(run_dir: Path, plan: Plan) -> None:
    """Write the plan, unless it is there; refuse another one, whose episodes would mix with this one's."""
    path = plan_path(run_dir, plan.name)
    if not path.exists():
        write_plan(run_dir, plan)
    elif read_plan(path) != plan:
        raise UserError(f"{path} asks for other episodes than these options; give --follow to play what it asks for")


async def follow_trainer(given: PlayOptions, worker: WorkerOptions, make_rewards: MakeRewards) -> None:
    """Play whatever grpo_train.py plans, loading new adapters as they appear, until its run is finished."""
    run_dir = worker.run_dir
    await wait_for_trainer(worker)
    card = read_run_card(run_dir)
    async with open_worker(given, worker, make_rewards) as (rollout, name):
        if (run_dir / FINISHED).exists():
            print(f"{run_dir} is finished; to continue it, start grpo_train.py with more --max-steps first")
        waits = Waits(waits_path(run_dir, name))
        await play_plans(rollout, worker, name, check=partial(refuse_change, run_dir, card), waits=waits)


async def play_plans(
    rollout: Rollout, worker: WorkerOptions, name: str, *, check: Callable[[], None] = lambda: None,
    claims: Callable[..., Claims] = Claims, waits: Waits | None = None,
) -> None:  # fmt: skip
    """Play one plan after another until the run is finished and none is left to play.

    A plan with something to play outweighs the word that the run is finished, which may be of an earlier end of it and
    still be seen here. `waits` counts how long there is nothing to play.
    """
    run_dir, watched, waits = worker.run_dir, dict[Plan, Played](), waits or Waits()
    while True:
        beat()
        finished = (run_dir / FINISHED).exists()
        plan = next_plan(run_dir, worker.max_staleness, watched)
        if plan:
            waits.save()
            await load_newest(rollout, run_dir, least_version(plan, worker.max_staleness), poll=worker.poll)
            await play_plan(
                rollout, run_dir, plan, name, poll=worker.poll, check=check, waits=waits, make_claims=claims
            )
            waits.save()
        elif finished:
            return
        else:
            await waits.sleep("backpressure", worker.poll)


@asynccontextmanager
async def open_worker(
    given: PlayOptions, worker: WorkerOptions, make_rewards: MakeRewards
) -> AsyncIterator[tuple[Rollout, str]]:
    """A rollout that agrees with the run in everything, and the name to play under."""
    run_dir, card = worker.run_dir, read_run_card(worker.run_dir)
    options = given.settle(card, run_dir)
    options.check()
    settings = options.search.settle(run_dir, options.policy)
    if card:
        refuse_disagreement(card, make_run_card(options, make_rewards, card, settings.tools), options, run_dir)
    read_policy_card(options.policy)  # before anything is written
    card_at(options.place, options.data)
    with named_worker(run_dir, worker.worker) as name:
        async with open_rollout(options, settings, make_rewards, card.embedder if card else "") as rollout:
            yield rollout, name


def refuse_disagreement(run: RunCard, own: RunCard, options: RolloutOptions, run_dir: Path) -> None:
    if found := disagreement(run, own, options):
        part, words = found
        raise UserError(f"{run_dir} was begun with {words}; {WAYS_OUT[part]}")


def refuse_change(run_dir: Path, card: RunCard | None) -> None:
    """Stop if the trainer was started again with other rewards: what this worker plays would not have them."""
    if read_run_card(run_dir) != card:
        raise UserError(f"{run_dir / RUN_FILE} has changed since this worker started; start the worker again")


async def wait_for_trainer(worker: WorkerOptions) -> None:
    """Wait for the run's card and agent.json: the trainer decides how to play, and writes both when it starts."""

    def started() -> bool:
        return all((worker.run_dir / name).exists() for name in (RUN_FILE, AGENT_FILE))

    if not started():
        print(f"waiting for grpo_train.py to start in {worker.run_dir}", flush=True)
    while not started():
        beat()
        await asyncio.sleep(worker.poll)


def least_version(plan: Plan, max_staleness: int) -> int:
    """The oldest adapter that may play a plan. After a rollback, older ones' episodes don't count."""
    return max(plan.version - max_staleness, plan.oldest, 0)


def next_plan(run_dir: Path, max_staleness: int, watched: dict[Plan, Played]) -> Plan | None:
    """The oldest plan with something left to play and an adapter that is new enough.

    `watched` keeps what was read of their episodes from poll to poll. A plan that is played is looked at again while it
    is open: which questions it wants may change once episodes of other workers appear.
    """
    there, plans = versions(run_dir), open_plans(run_dir)
    for gone in watched.keys() - set(plans):  # after a rollback the same plan wants newer episodes
        del watched[gone]
    for plan in plans:
        new_enough = there and there[-1] >= least_version(plan, max_staleness)
        if new_enough and watched.setdefault(plan, Played(run_dir, plan)).missing():
            return plan
    return None


async def load_newest(
    rollout: Rollout, run_dir: Path, least: int = 0, *, poll: float = 1.0, within: float = SEEN_WITHIN
) -> None:
    """Sample with the newest adapter of the run, or with the policy's own if the run has none yet.

    Waits until an adapter of version `least` or newer can be read whole here.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + within
    while True:
        beat()
        if not versions(run_dir):
            adapter = adapter_of(rollout.options.policy, read_run_card(run_dir))
            name = served_name(run_dir.name, 0, weights_digest(adapter))
            return await rollout.engine.load_adapter(name, adapter)
        if found := newest_whole(run_dir, least):
            version, adapter, digest = found
            try:
                return await rollout.engine.load_adapter(served_name(run_dir.name, version, digest), adapter)
            except (OSError, ValueError, SafetensorError, UserError):
                if whole_digest(adapter) is not None:  # else the trainer removes it, having published newer ones since
                    raise
        if clock() > deadline:
            adapter = adapter_path(run_dir, max([least, *versions(run_dir)]))
            raise UserError(
                f"{adapter} can't be read whole here after {within:.0f} s; check that this machine sees the trainer's "
                "folder, and that the trainer is of this version"
            )
        await asyncio.sleep(poll)


def newest_whole(run_dir: Path, least: int) -> tuple[int, Path, str] | None:
    """(version, folder, digest) of the newest adapter that can be read whole here, of those new enough."""
    for version in reversed(versions(run_dir)):
        adapter = adapter_path(run_dir, version)
        if version >= least and (digest := whole_digest(adapter)) is not None:
            return version, adapter, digest
    return None


async def play_plan(
    rollout: Rollout, run_dir: Path, plan: Plan, worker: str, *, poll: float = 1.0, lease: float = LEASE,
    check: Callable[[], None] = lambda: None, waits: Waits | None = None, part: str = "", shown: bool = True,
    make_claims: Callable[..., Claims] = Claims,
) -> None:  # fmt: skip
    """Play what no other worker is playing, a few questions at a time, and wait until the whole plan is played.

    `check` is called before each question's episodes are written; `waits` counts how long others play what is left.
    `part` says which part of a step the plan is.
    """
    waits = waits or Waits()
    played = Played(run_dir, plan)
    claims = make_claims(played.claims, worker, lease, asyncio.get_running_loop().time)
    write = EpisodeWriter(played.folder, claims)
    total = len(plan.questions) * plan.num_rollouts
    concurrency = max(1, rollout.options.concurrent_episodes // plan.num_rollouts)
    with RolloutView(f"{plan.name}{part}, {rollout.engine.adapter}", total, waits.words, shown=shown) as view:

        async def play(name: str) -> None:
            await play_question(rollout, rollout.question(plan, name), plan, write, view, check)

        await play_all(played.missing, play, claims, concurrency, poll=poll, waits=waits)


async def play_question(
    rollout: Rollout, question: Question, plan: Plan, write: EpisodeWriter, view: RolloutView,
    check: Callable[[], None],
) -> None:  # fmt: skip
    episodes = await rollout.play(question, plan, view)
    causes = [episode.cause for episode in episodes if episode.stop == "engine"]
    if causes:  # the server failed, which says nothing about the policy: not kept
        raise UserError(f"{plan.name}: {causes[0]}; start it, then run the same command again to resume")
    check()
    write(question.id, episodes)
