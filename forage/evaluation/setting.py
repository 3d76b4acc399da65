"""Setting: the questions, the store, and how the agent plays: the same for every policy and system."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from forage.agent.combination import MakeRewards, RewardFunction, rewards_of
from forage.agent.options import AgentSettings
from forage.agent.rewards import get_answer_similarity, get_mrr, get_token_f1
from forage.agent.searcher import Searcher
from forage.data.collection import read_qrels
from forage.data.records import Question, read_answerable
from forage.errors import UserError
from forage.evaluation.measures import Grades, grades_of
from forage.evaluation.options import EvaluationOptions
from forage.store.card import NO_EMBEDDER
from forage.store.embedder import Embedder
from forage.store.opening import Store, open_place


@dataclass(frozen=True)
class Setting:
    """Everything that a strategy may be built from."""

    options: EvaluationOptions
    agent: AgentSettings
    store: Store
    questions: list[Question]
    grades: list[Grades]
    by_document: bool
    """`grades` judge documents, so retrieval is measured in documents, not in chunks."""
    make_rewards: MakeRewards
    embedder_name: str
    """The store's embedder, or the one that was chosen when the output folder was begun."""

    @cached_property
    def embedder(self) -> Embedder:
        if self.store.options.embedder != NO_EMBEDDER:
            return self.store.embedder
        way_out = "the evaluation was begun with it: make it available here, or give another --output-dir"
        return Embedder(self.embedder_name, way_out=way_out)

    @cached_property
    def rewards(self) -> Mapping[str, RewardFunction]:
        """The training's rewards by name, without those that are a measure here anyway."""
        functions = rewards_of(self.make_rewards, self.embedder, Searcher(lambda: self.store, self.agent))
        return {name: function for name, function in functions.items() if MEASURED.get(name) is not function}

    @property
    def similarity(self) -> RewardFunction:
        """Similarity of answers to the reference: a strategy that chooses by it is an upper bound, not a system."""
        return partial(get_answer_similarity, embedder=self.embedder)


# Rewards that a measure of the same name computes too.
MEASURED: dict[str, RewardFunction] = {"mrr": get_mrr, "token_f1": get_token_f1}


def open_setting(
    options: EvaluationOptions, agent: AgentSettings, embedder: str, questions: list[Question],
    make_rewards: MakeRewards,
) -> Setting:  # fmt: skip
    """Opens the store, and reads the judgements of a test collection if there are any."""
    qrels = options.data / "qrels" / f"{options.split}.tsv"
    judgements = read_qrels(qrels) if qrels.exists() else None
    grades: list[Grades] = (
        grades_of(questions) if judgements is None else [judgements.get(question.id, {}) for question in questions]
    )
    store = open_place(options.place, options.data)
    return Setting(options, agent, store, questions, grades, judgements is not None, make_rewards, embedder)


def choose_questions(options: EvaluationOptions) -> list[Question]:
    path = options.data / f"{options.split}.jsonl"
    questions = choose(read_answerable(path), options.eval_questions, options.seed, options.skip_questions)
    if not questions:
        raise UserError(f"{path} has no question left that a chunk answers; make it again with data_prep.py")
    return questions


def choose(questions: Sequence[Question], count: int, seed: int, skip: int = 0) -> list[Question]:
    """The first `count` questions in the order of the seed after those to skip, so 200 include the 100; 0: all.

    Example: of the order a, b, c, d, two are a and b; two after skipping two are c and d.
    """
    drawn = sorted(questions, key=lambda question: question.id)
    random.Random(seed).shuffle(drawn)
    return drawn[skip:][: count or None]
