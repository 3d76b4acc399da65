"""Worker: plays a run's plans in a process of its own, alone or beside other workers on the same run folder."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from forage.agent.options import AGENT_FILE
from forage.agent.rewards import MakeRewards
from forage.arguments import leads_away
from forage.data.splits import read_splits
from forage.errors import UserError
from forage.heartbeat import beat
from forage.manifest import shown
from forage.policy.adapters import versions
from forage.policy.manifest import read_policy_manifest
from forage.rollout.agreement import (
    RUN_FILE,
    RunManifest,
    check_opened,
    disagreements,
    manifest_now,
    read_run,
    run_options,
)
from forage.rollout.options import RolloutOptions, WorkerOptions
from forage.rollout.plans import (
    Claims,
    Plan,
    Played,
    named_worker,
    open_plans,
    plan_of,
    plan_path,
    read_plan,
    write_plan,
)
from forage.rollout.rollout import Rollout, load_newest, open_rollout, play_plan
from forage.text import say

FINISHED = "finished"  # this file in the run folder says that the trainer will plan nothing more


async def play_one_step(options: RolloutOptions, worker: WorkerOptions, make_rewards: MakeRewards) -> None:
    """Play one step's episodes with the run's newest adapter, or with the policy's own if the run has none.

    The plan is written down: by it, the trainer will know whether these are the episodes that it wants.
    """
    run_dir = worker.run_dir
    async with open_worker(options, worker, make_rewards) as (rollout, name):
        step = versions(run_dir)[-1] if versions(run_dir) else 0
        await load_newest(rollout, run_dir)
        plan = plan_of(rollout.options, list(rollout.by_id["train"]), step)
        keep_plan(run_dir, plan)
        await play_plan(rollout, run_dir, plan, name)


def keep_plan(run_dir: Path, plan: Plan) -> None:
    """Write the plan, unless it is there; refuse another one, whose episodes would mix with this one's."""
    path = plan_path(run_dir, plan.name)
    if not path.exists():
        write_plan(run_dir, plan)
    elif read_plan(path) != plan:
        raise UserError(f"{path} asks for other episodes than these options; give --follow to play what it asks for")


async def follow_trainer(options: RolloutOptions, worker: WorkerOptions, make_rewards: MakeRewards) -> None:
    """Play whatever grpo_train.py plans, loading new adapters as they appear, until its run is finished."""
    run_dir = worker.run_dir
    await wait_for_trainer(run_dir)
    known = read_run(run_dir)
    async with open_worker(options, worker, make_rewards) as (rollout, name):
        if (run_dir / FINISHED).exists():
            print(f"{run_dir} is finished; to continue it, start grpo_train.py with more --max-steps first")
        elif known and known.options["rollouts"] == "own":
            raise UserError(f"{run_dir} plays its episodes itself; workers help a run that has --rollouts service")
        await play_plans(rollout, run_dir, name, check=lambda: refuse_change(run_dir, known))


async def play_plans(
    rollout: Rollout, run_dir: Path, name: str, *, check: Callable[[], None] = lambda: None,
    claims: Callable[..., Claims] = Claims, poll: float = 1.0,
) -> None:  # fmt: skip
    """Play one plan after another until the run is finished and none is left to play.

    A plan with something to play outweighs the word that the run is finished, which may be of an earlier end of it and
    still be seen here.
    """
    watched = dict[Plan, Played]()
    while True:
        beat()
        finished = (run_dir / FINISHED).exists()
        if plan := next_plan(run_dir, watched):
            await load_newest(rollout, run_dir, plan.oldest, poll=poll)
            await play_plan(rollout, run_dir, plan, name, poll=poll, check=check, make_claims=claims)
        elif finished:
            return
        else:
            await asyncio.sleep(poll)


@asynccontextmanager
async def open_worker(
    given: RolloutOptions, worker: WorkerOptions, make_rewards: MakeRewards
) -> AsyncIterator[tuple[Rollout, str]]:
    """A rollout that agrees with the run in everything, and the name to play under."""
    run_dir, known = worker.run_dir, read_run(worker.run_dir)
    options = as_in_run(given, known, run_dir)
    options.check()
    settings = options.search.settle(run_dir, options.policy)
    read_policy_manifest(options.policy)
    own = manifest_now(options, settings, make_rewards, run_dir, known)  # before anything is written
    if known and (words := disagreements(known, own)):
        raise UserError(
            f"{run_dir} was begun with {'; '.join(words)}: give this worker the trainer's --policy, --data and "
            "grpo_rollout.py"
        )
    with named_worker(run_dir, worker.worker) as name:
        questions, embedder = read_splits(options.data), known.embedder if known else ""
        async with open_rollout(options, settings, make_rewards, questions, embedder) as rollout:
            check_opened(rollout.searcher.store, known)
            yield rollout, name


def as_in_run(given: RolloutOptions, known: RunManifest | None, run_dir: Path) -> RolloutOptions:
    """How the run plays, which says so where that is not what was given here."""
    if known is None:
        return given
    played = run_options(known)
    if changed := [f"{name} {shown(value)}" for name, value in played.items() if value != getattr(given, name)]:
        say(f"{run_dir} plays with {', '.join(changed)}")
    if any(leads_away([weight]) and weight not in given.weights for weight in played["weights"]):
        raise UserError(
            f"{run_dir / RUN_FILE} rewards by code that it names; if you trust it, add --weights "
            f"{shlex.join(played['weights'])}"
        )
    return replace(given, **played)


def refuse_change(run_dir: Path, known: RunManifest | None) -> None:
    """Stop if the trainer was started again with other rewards: what this worker plays would not have them."""
    now = read_run(run_dir)
    if known and (now is None or now.compared() != known.compared()):
        raise UserError(f"{run_dir / RUN_FILE} has changed since this worker started; start the worker again")


async def wait_for_trainer(run_dir: Path) -> None:
    """Wait for run.json and agent.json: the trainer decides how to play, and writes both when it starts."""

    def started() -> bool:
        return all((run_dir / name).exists() for name in (RUN_FILE, AGENT_FILE))

    if not started():
        print(f"waiting for grpo_train.py to start in {run_dir}", flush=True)
    while not started():
        beat()
        await asyncio.sleep(1)


def next_plan(run_dir: Path, watched: dict[Plan, Played]) -> Plan | None:
    """The oldest plan with something left to play and an adapter that is new enough.

    `watched` keeps what was read of their episodes from poll to poll. A plan that is played is looked at again while it
    is open: which questions it wants may change once episodes of other workers appear.
    """
    there, plans = versions(run_dir), open_plans(run_dir)
    for gone in watched.keys() - set(plans):  # after a rollback the same plan wants newer episodes
        del watched[gone]
    for plan in plans:
        new_enough = there and there[-1] >= plan.oldest
        if new_enough and watched.setdefault(plan, Played(run_dir, plan)).missing():
            return plan
    return None
