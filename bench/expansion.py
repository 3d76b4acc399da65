"""Ways to get more out of one search without a model, to compare a trained policy with: RM3, and whole documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from forage.data.records import Question
from forage.metrics import reciprocal_rank
from forage.store.document_store import DocumentStore
from forage.store.fusion import Hit
from forage.text import IDLE, folded, spoken_words

Search = Callable[[Sequence[str]], list[list[str]]]
"""Chunk ids, best first, for each text."""
RM3_PARTS = 20  # an expanded query's weights are expressed by repeating words, in this many parts
WHOLE, DEPTH = "one search, and all passages of the documents it finds", 10


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


def words_of(text: str) -> list[str]:
    """Example: "It's Gout: rest" gives "it's", "gout", "rest"."""
    return spoken_words(folded(text))


def rm3_queries(store: DocumentStore, questions: Sequence[Question], settings: RM3) -> list[str]:
    hits = store.search([question.question for question in questions], settings.chunks, "sparse")
    return [settings.expand(q.question, found) for q, found in zip(questions, hits, strict=True)]


def best_rm3(store: DocumentStore, questions: Sequence[Question], search: Search) -> RM3:
    """The settings that find best for these questions."""
    choices = [RM3(chunks, words, own) for chunks in (3, 10) for words in (10, 20) for own in (0.5, 0.7, 0.9)]
    return max(choices, key=lambda choice: mean_rank(questions, rm3_queries(store, questions, choice), search))


def mean_rank(questions: Sequence[Question], texts: Sequence[str], search: Search) -> float:
    """Mean reciprocal rank."""
    ranks = map(reciprocal_rank, search(texts), [question.relevant_chunk_ids for question in questions])
    return float(np.mean(list(ranks)))
