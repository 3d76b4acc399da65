"""Setting: the questions, the store, and how the agent plays: the same for every policy and system."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from forage.agent.builder import Found
from forage.agent.combination import RewardFunction
from forage.agent.options import AgentSettings
from forage.agent.rewards import get_answer_similarity
from forage.data.collection import read_qrels
from forage.data.records import Question, read_answerable
from forage.errors import UserError
from forage.evaluation.measures import Grades, grades_of
from forage.evaluation.options import EvaluationOptions
from forage.evaluation.outcomes import Strategy
from forage.store.card import NO_EMBEDDER
from forage.store.document_store import DocumentStore
from forage.store.embedder import Embedder


@dataclass(frozen=True)
class Setting:
    """Everything that a strategy may be built from."""

    options: EvaluationOptions
    agent: AgentSettings
    store: DocumentStore
    questions: list[Question]
    grades: list[Grades]
    by_document: bool
    """`grades` judge documents, so retrieval is measured in documents, not in chunks."""

    @cached_property
    def embedder(self) -> Embedder:
        return self.store.embedder if self.store.options.embedder != NO_EMBEDDER else Embedder()

    @property
    def similarity(self) -> RewardFunction:
        """Similarity of answers to the reference: a strategy that chooses by it is an upper bound, not a system."""
        return partial(get_answer_similarity, embedder=self.embedder)

    def search(self, queries: Sequence[str]) -> Sequence[Sequence[Found]]:
        return self.store.search(queries, self.agent.k, self.agent.mode)


# The systems that can be evaluated, by name.
Systems = Mapping[str, Callable[[Setting], Strategy]]


def open_setting(options: EvaluationOptions, agent: AgentSettings, questions: list[Question]) -> Setting:
    """Opens the store, and reads the judgements of a test collection if there are any."""
    store = DocumentStore.open(options.data / "store")
    qrels = options.data / "qrels" / f"{options.split}.tsv"
    if not qrels.exists():
        return Setting(options, agent, store, questions, grades_of(questions), by_document=False)
    judgements = read_qrels(qrels)
    grades: list[Grades] = [judgements.get(question.id, {}) for question in questions]
    return Setting(options, agent, store, questions, grades, by_document=True)


def choose_questions(options: EvaluationOptions) -> list[Question]:
    path = options.data / f"{options.split}.jsonl"
    questions = choose(read_answerable(path), options.eval_questions, options.seed)
    if not questions:
        raise UserError(f"{path} has no question with a chunk that answers it; make it again with data_prep.py")
    return questions


def choose(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """The first `count` questions in the order of the seed, so 200 questions include the 100; 0: all."""
    drawn = sorted(questions, key=lambda question: question.id)
    random.Random(seed).shuffle(drawn)
    return drawn[: count or None]
