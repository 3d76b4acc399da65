"""Worker: plays a plan's questions, alone or beside other workers on the same run folder."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED as FIRST
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from forage.agent.combination import MakeRewards
from forage.agent.episode import append_episodes
from forage.agent.options import AGENT_FILE
from forage.data.records import Question
from forage.errors import UserError
from forage.heartbeat import beat
from forage.policy.adapters import newest_adapter, served_name, versions
from forage.rollout.claims import Claims
from forage.rollout.options import RolloutOptions, WorkerOptions
from forage.rollout.plans import Plan, Played, open_plans, plan_of
from forage.rollout.rollout import Rollout, open_rollout
from forage.rollout.view import RolloutView

FINISHED = "finished"  # this file in the run folder says that the trainer will plan nothing more


async def play_one_step(options: RolloutOptions, worker: WorkerOptions, make_rewards: MakeRewards) -> None:
    """Play one step's episodes with the run's newest adapter, or with the policy's own if the run has none."""
    settings = options.search.settle(worker.run_dir, options.policy)
    async with open_rollout(options, settings, make_rewards) as rollout:
        step = versions(worker.run_dir)[-1] if versions(worker.run_dir) else 0
        await load_newest(rollout, worker.run_dir)
        plan = plan_of(options, list(rollout.by_id["train"]), step)
        await play_plan(rollout, worker.run_dir, plan, worker.worker, poll=worker.poll)


async def follow_trainer(options: RolloutOptions, worker: WorkerOptions, make_rewards: MakeRewards) -> None:
    """Play whatever grpo_train.py plans, loading new adapters as they appear, until its run is finished."""
    run_dir = worker.run_dir
    await wait_for_settings(worker)
    settings = options.search.settle(run_dir, options.policy)
    async with open_rollout(options, settings, make_rewards) as rollout:
        if (run_dir / FINISHED).exists():
            print(f"{run_dir} is finished; to continue it, start grpo_train.py with more --max-steps first")
        done: set[str] = set()
        while not (run_dir / FINISHED).exists():
            beat()
            plan = next_plan(run_dir, worker.max_staleness, done)
            if plan is None:
                await asyncio.sleep(worker.poll)
                continue
            await load_newest(rollout, run_dir)
            await play_plan(rollout, run_dir, plan, worker.worker, poll=worker.poll)


async def wait_for_settings(worker: WorkerOptions) -> None:
    """Wait for the run's agent.json: the trainer decides how the agent plays, and writes it when it starts."""
    if not (worker.run_dir / AGENT_FILE).exists():
        print(f"waiting for grpo_train.py to start in {worker.run_dir}", flush=True)
    while not (worker.run_dir / AGENT_FILE).exists():
        beat()
        await asyncio.sleep(worker.poll)


def next_plan(run_dir: Path, max_staleness: int, done: set[str]) -> Plan | None:
    """The oldest plan with something left to play and an adapter that is new enough.

    Fully played plans are added to `done`, so that their episodes aren't read again on every poll.
    """
    there = versions(run_dir)
    for plan in open_plans(run_dir):
        if plan.name not in done and there and there[-1] + max_staleness >= plan.version:
            if Played(run_dir, plan).missing():
                return plan
            done.add(plan.name)
    return None


async def load_newest(rollout: Rollout, run_dir: Path) -> None:
    """Sample with the newest adapter of the run, or with the policy's own if the run has none yet."""
    while True:
        adapter = newest_adapter(run_dir if versions(run_dir) else rollout.options.policy)
        version = int(adapter.name[1:]) if versions(run_dir) else 0
        try:
            return await rollout.engine.load_adapter(served_name(run_dir.name, version), adapter)
        except (OSError, ValueError, SafetensorError, UserError):
            if adapter.exists():  # else the trainer removed it, having published newer ones since
                raise


async def play_plan(rollout: Rollout, run_dir: Path, plan: Plan, worker: str, *, poll: float = 1.0) -> None:
    """Play what no other worker is playing, a few questions at a time, and wait until the whole plan is played."""
    played = Played(run_dir, plan)
    claims = Claims(played.folder / "claims", worker)
    playing: dict[asyncio.Task[None], str] = {}
    total = len(plan.questions) * plan.num_rollouts
    concurrency = max(1, rollout.options.concurrent_episodes // plan.num_rollouts)
    with RolloutView(f"{plan.name}, {rollout.engine.adapter}", total) as view:
        keeper = asyncio.create_task(keep_fresh(claims, playing))
        try:
            while missing := played.missing():
                beat()
                for name in missing:
                    room = len(playing) < concurrency and name not in playing.values()
                    if room and claims.take(name):
                        question = rollout.question(plan, name)
                        task = asyncio.create_task(play_question(rollout, question, plan, claims, played.folder, view))
                        playing[task] = name
                if not playing:  # others play the rest; if one of them dies, its claims expire
                    await asyncio.sleep(poll)
                    continue
                done, _ = await asyncio.wait(playing, timeout=poll, return_when=FIRST)
                for task in done:
                    del playing[task]
                    task.result()
        finally:
            for task in (keeper, *playing):
                task.cancel()


async def play_question(
    rollout: Rollout, question: Question, plan: Plan, claims: Claims, folder: Path, view: RolloutView
) -> None:
    episodes = await rollout.play(question, plan, view)
    causes = [episode.cause for episode in episodes if episode.stop == "engine"]
    if causes:  # the server failed, which says nothing about the policy: not kept
        raise UserError(f"{plan.name}: {causes[0]}; start it, then run the same command again to resume")
    if claims.holds(question.id):  # false if this worker was asleep so long that another one took over
        append_episodes(folder / f"{claims.worker}.jsonl", episodes)


async def keep_fresh(claims: Claims, playing: Mapping[Any, str]) -> None:
    while True:
        await asyncio.sleep(claims.lease / 4)
        for name in playing.values():
            claims.refresh(name)
