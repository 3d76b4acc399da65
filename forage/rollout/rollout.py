"""Rollout: plays questions with the policy and rewards the episodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.builder import Found
from forage.agent.combination import (
    MakeRewards,
    RewardFunction,
    combine_rewards,
    reward_matrix,
    rewards_of,
    scored,
    weights_by_name,
)
from forage.agent.credit import credited
from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.agent.rewards import has_reference
from forage.agent.searcher import Searcher
from forage.agent.tools import functions_for
from forage.data.records import Question, read_answerable
from forage.data.splits import read_training_questions
from forage.engines.base import Engine
from forage.engines.choice import open_engine
from forage.errors import UserError
from forage.policy.card import read_policy_card
from forage.policy.policy import load_tokenizer
from forage.rollout.options import RolloutOptions
from forage.rollout.plans import Plan
from forage.rollout.run_card import open_embedder
from forage.rollout.view import RolloutView
from forage.store.card import NO_EMBEDDER
from forage.store.opening import Store, open_place


class Rollout:
    """Plays questions and rewards the episodes. Made by `open_rollout`."""

    def __init__(
        self, options: RolloutOptions, settings: AgentSettings, engine: Engine, protocol: Protocol,
        store: Store, functions: Mapping[str, RewardFunction],
    ) -> None:  # fmt: skip
        self.searcher = Searcher(lambda: store, settings)
        self.options, self.settings, self.functions = options, settings, functions
        self.engine, self.protocol, self.store = engine, protocol, store
        self.weights = weights_by_name(functions, options.weights)
        self.by_id = read_split_questions(options)
        self.try_rewards()
        self.tools = functions_for(settings.tools)
        self.searches = BatchedSearch(self.search, in_line=engine.exact)

    def try_rewards(self) -> None:
        """Run every reward on made-up episodes, so that a broken one is reported before anything is played.

        Says which rewards don't exist for questions without a reference answer, if there are any.
        """
        questions = [question for by_id in self.by_id.values() for question in by_id.values()]
        self.reward_trial(next(filter(has_reference, questions), questions[0]))
        without = [question for question in questions if not has_reference(question)]
        missing = [name for name in self.functions if without and name not in self.reward_trial(without[0]).rewards]
        if missing:
            effect = "left out of the run" if len(without) == len(questions) else "left out of their episodes"
            print(
                f"{len(without)} of {len(questions)} questions have no reference answer to compare with, so "
                f"{', '.join(missing)} is {effect}"
            )

    def reward_trial(self, question: Question) -> Episode:
        """The second of two made-up episodes, rewarded."""
        blank = Episode("trial/0", "trial", (), (), (), (), (), "", "turns", "base")
        return self.reward([blank, replace(blank, id="trial/1", answer="yes")], [question] * 2)[1]

    def search(self, queries: Sequence[str]) -> Sequence[Sequence[Found]]:
        return self.store.search(queries, self.settings.k, self.settings.mode, fusion=self.settings.fusion)

    async def play(self, question: Question, plan: Plan, view: RolloutView) -> list[Episode]:
        """A question's group of episodes, rewarded."""
        sampling = replace(self.options.sampling, temperature=plan.temperature)
        agent = Agent(self.engine, self.protocol, self.searches, self.settings, sampling, tools=self.tools)

        async def one(sample: int) -> Episode:
            episode = await agent.play(question, sample, plan.seed)
            view.played(episode)
            return episode

        episodes = await asyncio.gather(*(one(sample) for sample in range(plan.num_rollouts)))
        episodes = await self.searches.in_thread(self.reward, episodes, [question] * len(episodes))
        if plan.credit == "words":
            episodes = await self.searches.in_thread(self.credit, episodes, question, plan.word_cost)
        view.rewarded(episodes)
        return episodes

    def reward(self, episodes: Sequence[Episode], questions: Sequence[Question]) -> list[Episode]:
        """Add each one's rewards and their weighted mean. Only people read the mean: training combines them itself."""
        matrix_NR = reward_matrix(self.functions, episodes, questions)
        combined_N = combine_rewards(matrix_NR, "uniform", list(self.weights.values()))
        return scored(episodes, list(self.functions), matrix_NR, combined_N)

    def credit(self, episodes: Sequence[Episode], question: Question, cost: float) -> list[Episode]:
        return credited(episodes, question, self.searcher, self.protocol.tokenizer.decode, cost)

    def question(self, plan: Plan, name: str) -> Question:
        if name not in self.by_id[plan.split]:
            raise UserError(f"plan {plan.name} asks for {plan.split} question {name}, which {self.options.data} lacks")
        return self.by_id[plan.split][name]


def read_split_questions(options: RolloutOptions) -> dict[str, dict[str, Question]]:
    """The answerable questions of both splits, by id."""
    train, held_out = options.data / "train.jsonl", options.data / "eval.jsonl"
    questions = {
        "train": {q.id: q for q in read_training_questions(options.data)},
        "eval": {q.id: q for q in (read_answerable(held_out) if held_out.exists() else [])},
    }
    if not questions["train"]:
        raise UserError(f"{train} has no question that a chunk of the store answers; make the data again")
    return questions


@asynccontextmanager
async def open_rollout(
    options: RolloutOptions, settings: AgentSettings, make_rewards: MakeRewards, embedder: str = "", *,
    sleeps: bool = False,
) -> AsyncIterator[Rollout]:  # fmt: skip
    """Open everything a rollout needs: the engine, the store, the rewards with the run's embedder."""
    options.check()
    card = read_policy_card(options.policy)
    store = open_place(options.place, options.data)
    protocol = Protocol.playing(load_tokenizer(card), settings)
    slots, tokens = options.concurrent_episodes, settings.max_tokens
    async with open_engine(options.engine, card, slots, tokens, sleeps=sleeps) as engine:
        opened = store.embedder if store.options.embedder != NO_EMBEDDER else open_embedder(store.card, embedder)
        functions = rewards_of(make_rewards, opened, Searcher(lambda: store, settings))
        yield Rollout(options, settings, engine, protocol, store, functions)
