"""Searcher: the agent's search for rewards, which may look deeper than what the policy is shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from forage.agent.agent import SearchMany, searched_for
from forage.agent.options import AgentSettings
from forage.agent.window import best_start
from forage.data.records import Question
from forage.errors import UserError
from forage.store.bm25 import Tokenizer
from forage.store.hit import Hit
from forage.store.opening import Store
from forage.store.remote import RemoteStore
from forage.text import words_of


def searching(store: Store, settings: AgentSettings) -> SearchMany:
    """The agent's search, which finds as many passages as it is shown, each from where its window begins."""

    def search(queries: Sequence[str]) -> list[list[Hit]]:
        return store.search(queries, settings.k, settings.mode, fusion=settings.fusion)

    if settings.window == "start":
        return search
    stems = Tokenizer(store.options.language)

    def windowed(hit: Hit, query: str) -> Hit:
        return replace(hit, text=hit.text[best_start(hit.text, query, hit.title, stems) :])

    return lambda queries: [
        [windowed(hit, query) for hit in hits] for query, hits in zip(queries, search(queries), strict=True)
    ]


@dataclass(frozen=True)
class Place:
    """Where a search found the first chunk that answers its question."""

    rank: int | None
    """From 1; None if it was not found."""
    margin: float
    """Its score over the sum of its score and that of the best chunk that does not answer: above .5 at rank 1; 0 if it
    was not found."""


@dataclass
class Searcher:
    """Searches the store in the way the agent does; the store is opened when it is first asked."""

    open_store: Callable[[], Store]
    settings: AgentSettings
    _own: dict[tuple[str, int], Place] = field(default_factory=dict)

    @cached_property
    def store(self) -> Store:
        return self.open_store()

    @cached_property
    def _counts(self) -> tuple[int, Counter[str]]:
        """How many passages the store has, and how many of them say each word."""
        if isinstance(self.store, RemoteStore):
            raise UserError(
                f"how rare a word is can't be asked of {self.store.path}; name the store's folder (--store)"
            )
        chunks = self.store.chunks
        return len(chunks), Counter(word for chunk in chunks for word in set(words_of(chunk.text)))

    def rarity(self, word: str) -> float:
        """Inverse document frequency: log((1 + passages) / (1 + those that say the word)); 0 if all do."""
        size, counts = self._counts
        return math.log((1 + size) / (1 + counts[word]))

    def places(self, questions: Sequence[Question], queries: Sequence[str], depth: int) -> list[Place]:
        """What each of the policy's queries finds for its question, searched for `depth` chunks."""
        texts = [
            searched_for(question, query, self.settings.question_weight)
            for question, query in zip(questions, queries, strict=True)
        ]
        return self._search(questions, texts, depth)

    def own_places(self, questions: Sequence[Question], depth: int) -> list[Place]:
        """The same where the question itself is searched for, which is remembered."""
        new = {question.id: question for question in questions if (question.id, depth) not in self._own}
        found = self._search(list(new.values()), [question.question for question in new.values()], depth)
        self._own |= {(name, depth): place for name, place in zip(new, found, strict=True)}
        return [self._own[question.id, depth] for question in questions]

    def _search(self, questions: Sequence[Question], texts: Sequence[str], depth: int) -> list[Place]:
        if not texts:
            return []
        found = self.store.search(texts, depth, self.settings.mode, fusion=self.settings.fusion)
        return [place_of(question, hits) for question, hits in zip(questions, found, strict=True)]


def place_of(question: Question, hits: Sequence[Hit]) -> Place:
    """Example: scores 3, 2, 1, of which the second answers: rank 2, margin 2 / (2 + 3) = .4."""
    answers = [hit.chunk_id in question.relevant_chunk_ids for hit in hits]
    if not any(answers):
        return Place(None, 0.0)
    rank = answers.index(True)
    best_other = next((max(0.0, hit.score) for hit, right in zip(hits, answers, strict=True) if not right), 0.0)
    score = max(0.0, hits[rank].score)  # scores of common words alone may lie below 0
    return Place(rank + 1, score / (score + best_other) if score else 0.0)
