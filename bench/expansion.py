"""Ways to expand a question that need no model, to compare a trained policy with: RM3, and a look-up table.

The table's key is how a question begins, since a user says no question type. All is counted on training questions.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forage.agent.agent import searched_for
from forage.data.records import Question
from forage.metrics import reciprocal_rank
from forage.sft.telling_words import telling_words, words_of
from forage.store.document_store import DocumentStore
from forage.store.hit import Hit
from forage.text import IDLE

Search = Callable[[Sequence[str]], list[list[str]]]
"""Chunk ids, best first, for each text."""
ANY = ""  # the key of questions that begin like no other
LEAST = 20  # questions that a key of a table stands for
RM3_PARTS = 20  # an expanded query's weights are expressed by repeating words, in this many parts


# RM3


@dataclass(frozen=True)
class RM3:
    """Pseudo-relevance feedback: Abdul-Jaleel et al., UMass at TREC 2004; its usual settings are 10, 10 and .5."""

    chunks: int = 10
    """Chunks of the first search that are taken for relevant."""
    words: int = 10
    """Words taken from them."""
    own: float = 0.5
    """Weight of the question; the words have the rest."""

    def expand(self, question: str, hits: Sequence[Hit]) -> str:
        """The question and the words, each repeated by its weight: BM25 counts repeats.

        A word's weight is its share of a chunk's words, averaged over the chunks by their scores. Example: hits "x x y"
        with score 3 and "y z" with score 1 give x 3/4 * 2/3 = .5, y 3/4 * 1/3 + 1/4 * 1/2 = .375, z .125.
        """
        weights: dict[str, float] = defaultdict(float)
        total = sum(hit.score for hit in hits[: self.chunks])
        for hit in hits[: self.chunks]:
            words = [word for word in words_of(hit.text) if word not in IDLE]
            for word in words:
                weights[word] += hit.score / total / len(words)
        kept = sorted(weights.items(), key=lambda item: -item[1])[: self.words]
        share = sum(weight for _, weight in kept) or 1
        parts = len(words_of(question)) * RM3_PARTS * (1 - self.own) / self.own
        said = [word for word, weight in kept for _ in range(round(parts * weight / share))]
        return " ".join([question] * RM3_PARTS + said)


def rm3_queries(store: DocumentStore, questions: Sequence[Question], settings: RM3) -> list[str]:
    hits = store.search([question.question for question in questions], settings.chunks, "sparse")
    return [settings.expand(q.question, found) for q, found in zip(questions, hits, strict=True)]


def best_rm3(store: DocumentStore, questions: Sequence[Question], search: Search) -> RM3:
    """The settings that find best for these questions."""
    choices = [RM3(chunks, words, own) for chunks in (3, 10) for words in (10, 20) for own in (0.5, 0.7, 0.9)]
    return max(choices, key=lambda choice: mean_rank(questions, rm3_queries(store, questions, choice), search))


# Tables


def key_of(question: str, keys: Iterable[str]) -> str:
    """The longest key that the question begins with. Example: "what causes gout" has "what causes" before "what"."""
    words = opening(question)
    return next((" ".join(words[:n]) for n in range(len(words), 0, -1) if " ".join(words[:n]) in keys), ANY)


def opening(question: str) -> list[str]:
    """A question's first words, at most six."""
    return re.findall(r"[\w']+", question.lower())[:6]


def keys_of(questions: Sequence[Question]) -> dict[str, list[Question]]:
    """Questions by key: the longest beginning that at least LEAST of them share."""
    counts = Counter(" ".join(opening(q.question)[:n]) for q in questions for n in range(1, 7))
    keys = {key for key, count in counts.items() if count >= LEAST}
    by_key: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        by_key[key_of(question.question, keys)].append(question)
    by_key[ANY] = list(questions)
    return by_key


def best_table(questions: Sequence[Question], search: Search, weight: int, tried_on: int = 150) -> dict[str, str]:
    """For each key, the words that find best on up to `tried_on` of its questions; none are a choice, too."""
    said, candidates = {}, telling_for(questions)
    for key, several in keys_of(questions).items():
        tried = several[:: max(1, len(several) // tried_on)][:tried_on]
        found = {text: mean_rank(tried, [searched_for(q, text, weight) for q in tried], search) for text in candidates}
        said[key] = max(found, key=found.__getitem__)
    return said


def telling_for(questions: Sequence[Question]) -> list[str]:
    """The most telling words of the answers to each kind of question, 4, 8 and 12 of them."""
    by_key = keys_of(questions)
    named = [replace(q, question_type=key) for key, several in by_key.items() if key != ANY for q in several]
    ranked = [sorted(words, key=words.__getitem__, reverse=True) for words in telling_words(named).values()]
    return list(dict.fromkeys(["", *(" ".join(words[:count]) for words in ranked for count in (4, 8, 12))]))


def mean_rank(questions: Sequence[Question], texts: Sequence[str], search: Search) -> float:
    """Mean reciprocal rank."""
    ranks = map(reciprocal_rank, search(texts), [question.relevant_chunk_ids for question in questions])
    return float(np.mean(list(ranks)))
