"""Rollout: plays questions and rewards the episodes; shares a plan among workers."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED as FIRST
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from forage.agent.agent import Agent, BatchedSearch, Found
from forage.agent.combination import MakeRewards, RewardFunction, combine_rewards, reward_matrix, scored
from forage.agent.episode import Episode, append_episodes
from forage.agent.protocol import Protocol
from forage.data.records import Question, read_answerable
from forage.engines.base import Engine
from forage.engines.choice import open_engine
from forage.engines.vllm import VLLMEngine
from forage.errors import UserError
from forage.heartbeat import beat
from forage.policy.adapters import newest_adapter, served_name, versions
from forage.policy.policy import load_tokenizer, read_policy_card
from forage.rollout.claims import Claims
from forage.rollout.options import RolloutOptions
from forage.rollout.plans import Plan, Played, open_plans
from forage.rollout.view import RolloutView
from forage.schedule import in_rounds
from forage.store.card import NO_EMBEDDER
from forage.store.document_store import DocumentStore
from forage.store.embedder import Embedder

# Playing.


class Rollout:
    """Plays questions and rewards the episodes. Made by `open_rollout`."""

    def __init__(
        self,
        options: RolloutOptions,
        engine: Engine,
        protocol: Protocol,
        store: DocumentStore,
        functions: Mapping[str, RewardFunction],
    ) -> None:
        self.options, self.engine, self.protocol, self.store = options, engine, protocol, store
        train = options.data / "train.jsonl"
        self.questions = read_answerable(train)
        if not self.questions:
            raise UserError(f"{train} has no question with a chunk that answers it")
        held_out = options.data / "eval.jsonl"
        self.by_id = {
            "train": {q.id: q for q in self.questions},
            "eval": {q.id: q for q in (read_answerable(held_out) if held_out.exists() else [])},
        }
        self.functions = functions
        self.try_rewards()
        self.exact = not isinstance(engine, VLLMEngine)  # equal seeds give equal episodes, to the last bit
        self.searches = BatchedSearch(self.search, in_line=self.exact)

    def try_rewards(self) -> None:
        """Try every reward and weight on made-up episodes, so that a broken one shows before anything is played."""
        blank = Episode("trial/0", "trial", (), (), (), (), (), "", "turns", "base")
        self.reward([blank, replace(blank, id="trial/1", answer="yes")], self.questions[:1] * 2)

    def search(self, queries: Sequence[str]) -> Sequence[Sequence[Found]]:
        return self.store.search(queries, self.options.k, self.options.mode)

    async def play(self, question: Question, plan: Plan, view: RolloutView) -> list[Episode]:
        """A question's group of episodes, rewarded."""
        sampling = replace(self.options.sampling, temperature=plan.temperature)
        weight = self.options.question_weight
        agent = Agent(self.engine, self.protocol, self.searches, self.options.limits, sampling, weight)

        async def one(sample: int) -> Episode:
            episode = await agent.play(question, sample, plan.seed)
            view.played(episode)
            return episode

        episodes = await asyncio.gather(*(one(sample) for sample in range(plan.num_rollouts)))
        episodes = await self.searches.in_thread(self.reward, episodes, [question] * len(episodes))
        view.rewarded(episodes)
        return episodes

    def reward(self, episodes: Sequence[Episode], questions: Sequence[Question]) -> list[Episode]:
        """Each with its rewards by name and, for people, their weighted mean; training combines a batch's anew."""
        matrix_NR = reward_matrix(self.functions, episodes, questions)
        return scored(
            episodes,
            list(self.functions),
            matrix_NR,
            combine_rewards(matrix_NR, "uniform", self.options.weights or None),
        )

    def question(self, plan: Plan, name: str) -> Question:
        if name not in self.by_id[plan.split]:
            raise UserError(f"{self.options.data} has no {plan.split} question {name}, which plan {plan.name} names")
        return self.by_id[plan.split][name]


def plan_of(options: RolloutOptions, ids: Sequence[str], step: int) -> Plan:
    """A step's questions in rounds, none of them twice in a step."""
    chosen = in_rounds(ids, step, options.batch_size, options.seed)
    return Plan(
        f"{step:06d}", step, tuple(dict.fromkeys(chosen)), num_rollouts=options.num_rollouts,
        temperature=options.sampling.temperature, seed=options.seed * 1_000_003 + step,
    )  # fmt: skip


@asynccontextmanager
async def open_rollout(options: RolloutOptions, rewards: MakeRewards) -> AsyncIterator[Rollout]:
    """Everything that playing needs, the engine among it."""
    options.check()
    card = read_policy_card(options.policy)
    store = DocumentStore.open(options.data / "store")
    protocol = Protocol(load_tokenizer(card), options.passage_tokens)
    async with open_engine(options.engine, options.server, card, options.episodes_at_once) as engine:
        if options.engine == "auto" and not isinstance(engine, VLLMEngine):
            print(f"engine: this process, as no vLLM server answers at {options.server.urls[0]}")
        embedder = store.embedder if store.options.embedder != NO_EMBEDDER else Embedder()
        yield Rollout(options, engine, protocol, store, rewards(embedder))


# A plan, shared by workers.


async def play_plan(rollout: Rollout, run_dir: Path, plan: Plan, worker: str, *, poll: float = 1.0) -> None:
    """Play what of a plan no other worker plays, a few questions at once, and wait until all are played."""
    played = Played(run_dir, plan)
    claims = Claims(played.folder / "claims", worker)
    playing: dict[asyncio.Task[None], str] = {}
    total = len(plan.questions) * plan.num_rollouts
    at_once = max(1, rollout.options.episodes_at_once // plan.num_rollouts)
    with RolloutView(f"{plan.name}, {rollout.engine.adapter}", total) as view:
        keeper = asyncio.create_task(keep_fresh(claims, playing))
        try:
            while missing := played.missing():
                beat()
                for name in missing:
                    room = len(playing) < at_once and name not in playing.values()
                    if room and claims.take(name):
                        question = rollout.question(plan, name)
                        task = asyncio.create_task(play_question(rollout, question, plan, claims, played.folder, view))
                        playing[task] = name
                # Where others play the rest, look again later: if one of them dies, its claims fall free.
                if not playing:
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
    if causes:  # says nothing of the policy: not kept
        raise UserError(f"{plan.name}: {causes[0]}; start it, and run the same command again to go on from here")
    if claims.holds(question.id):  # not if this worker slept so long that another one took over
        append_episodes(folder / f"{claims.worker}.jsonl", episodes)


async def keep_fresh(claims: Claims, playing: Mapping[Any, str]) -> None:
    while True:
        await asyncio.sleep(claims.lease / 4)
        for name in playing.values():
            claims.refresh(name)


# The script.

FINISHED = "finished"  # in the run folder, when the trainer plans nothing more


def next_plan(run_dir: Path, max_staleness: int, done: set[str]) -> Plan | None:
    """The oldest plan that something is left of to play, and for which there is an adapter that is new enough.

    Plans found to be played are added to `done`, so that their episodes are not read at every look.
    """
    there = versions(run_dir)
    for plan in open_plans(run_dir):
        if plan.name not in done and there and there[-1] + max_staleness >= plan.version:
            if Played(run_dir, plan).missing():
                return plan
            done.add(plan.name)
    return None


async def load_newest(rollout: Rollout, run_dir: Path) -> None:
    """The newest adapter of the run, or the policy's own where there is none yet."""
    adapter = newest_adapter(run_dir if versions(run_dir) else rollout.options.policy)
    version = int(adapter.name[1:]) if versions(run_dir) else 0
    await rollout.engine.load_adapter(served_name(run_dir.name, version), adapter)
