"""Searcher: the agent's search for rewards, which may look deeper than what the policy is shown; and what is shown."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from forage.agent.agent import SearchMany, searched_for
from forage.agent.options import DEPTH, AgentSettings
from forage.data.records import Question
from forage.errors import UserError
from forage.store.bm25 import Tokenizer
from forage.store.fusion import Hit
from forage.store.opening import Store
from forage.store.remote import RemoteStore
from forage.text import COUNTED, count_words, words_of

# Window: which part of a passage the policy is shown, as only its first tokens fit.

SHORTEST = 8  # words of a window
PER_TOKEN = 0.72  # words of a passage that a token of it holds, about
LEAD = 0.3  # share of the room beside what was asked for that is shown before it; what answers tends to follow


def best_start(text: str, query: str, title: str, stems: Callable[[str], list[str]], tokens: int) -> int:
    """Where to begin so that the window says most of what a query asks for, somewhat before it; 0 if nowhere more.

    The window is of about so many tokens, of which the title takes its part. Words of the title say nothing about the
    place, and a word of the query counts the more, the fewer of the passage's words are it. Example: with room for
    eight words, "when is rye sown" wants of a passage titled "Rye" the one about sowing, from two words before it.
    """
    room = max(SHORTEST, round(PER_TOKEN * tokens) - count_words(title))
    spans = [(word.start(), word.end()) for word in COUNTED.finditer(text)]
    asked = set(stems(query)) - set(stems(title))
    if len(spans) <= room or not asked:
        return 0
    said = [asked.intersection(stems(text[start:end])) for start, end in spans]
    counts = Counter(stem for stems_of_word in said for stem in stems_of_word)
    worth = {stem: math.log(1 + len(spans) / count) for stem, count in counts.items()}
    places = [place for place, found in enumerate(said) if found]
    best, most = (0, 0), 0.0
    for number, first in enumerate(places):
        seen, last, total = set[str](), first, 0.0
        for place in places[number : bisect_left(places, first + room)]:
            if new := said[place] - seen:
                seen, last, total = seen | new, place, total + sum(worth[stem] for stem in new)
        if total > most + 1e-9:
            best, most = (first, last), total
    first, last = best
    before = int(LEAD * (room - (last + 1 - first)))
    return spans[max(0, min(first - before, len(spans) - room))][0]


# Searcher


def searching(store: Store, settings: AgentSettings) -> SearchMany:
    """The agent's search, which finds as many passages as it is shown, each from where its window begins."""

    def search(queries: Sequence[str]) -> list[list[Hit]]:
        return store.search(queries, settings.k, settings.mode, fusion=settings.fusion)

    if settings.window == "start":
        return search
    stems, tokens = Tokenizer(store.options.language), settings.passage_tokens

    def windowed(hit: Hit, query: str) -> Hit:
        return replace(hit, text=hit.text[best_start(hit.text, query, hit.title, stems, tokens) :])

    return lambda queries: [
        [windowed(hit, query) for hit in hits] for query, hits in zip(queries, search(queries), strict=True)
    ]


def remembering(search_many: SearchMany) -> SearchMany:
    """The same search, which searches for each text once."""
    known: dict[str, Sequence[Hit]] = {}

    def search(texts: Sequence[str]) -> list[Sequence[Hit]]:
        if new := [text for text in dict.fromkeys(texts) if text not in known]:
            known.update(zip(new, search_many(new), strict=True))
        return [known[text] for text in texts]

    return search


def search_each(search_many: SearchMany, queries: Sequence[Sequence[str]]) -> list[list[Sequence[Hit]]]:
    """What each query of several lists finds; all are searched for in one batch."""
    found = iter(search_many([query for several in queries for query in several]))
    return [[next(found) for _ in several] for several in queries]


@dataclass(frozen=True)
class AnswerRank:
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
    _own: dict[str, AnswerRank] = field(default_factory=dict)

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

    def places(self, questions: Sequence[Question], queries: Sequence[str]) -> list[AnswerRank]:
        """What each of the policy's queries finds for its question, searched for DEPTH chunks."""
        texts = [
            searched_for(question, query, self.settings.question_weight)
            for question, query in zip(questions, queries, strict=True)
        ]
        return self._search(questions, texts)

    def own_places(self, questions: Sequence[Question]) -> list[AnswerRank]:
        """The same where the question itself is searched for, which is remembered."""
        new = {question.id: question for question in questions if question.id not in self._own}
        found = self._search(list(new.values()), [question.question for question in new.values()])
        self._own |= zip(new, found, strict=True)
        return [self._own[question.id] for question in questions]

    def _search(self, questions: Sequence[Question], texts: Sequence[str]) -> list[AnswerRank]:
        if not texts:
            return []
        found = self.store.search(texts, DEPTH, self.settings.mode, fusion=self.settings.fusion)
        return [answer_rank(question, hits) for question, hits in zip(questions, found, strict=True)]


def answer_rank(question: Question, hits: Sequence[Hit]) -> AnswerRank:
    """Example: scores 3, 2, 1, of which the second answers: rank 2, margin 2 / (2 + 3) = .4."""
    answers = [hit.chunk_id in question.relevant_chunk_ids for hit in hits]
    if not any(answers):
        return AnswerRank(None, 0.0)
    rank = answers.index(True)
    best_other = next((max(0.0, hit.score) for hit, right in zip(hits, answers, strict=True) if not right), 0.0)
    score = max(0.0, hits[rank].score)  # scores of common words alone may lie below 0
    return AnswerRank(rank + 1, score / (score + best_other) if score else 0.0)
