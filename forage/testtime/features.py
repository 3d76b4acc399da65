"""Features: what can be seen of a question's candidate episodes without knowing its answer, as a row of numbers each.

A row holds SCALARS, then PRODUCTS. The scalars are cosines between the embeddings of question, answer, last query and
passages shown, the written scorers, and what is simply counted. The products are vectors, multiplied number by number,
of two texts: a cosine weighs all of their numbers alike, and the model may learn to weigh them otherwise.

An episode that goes on has no answer yet: `open` is 1, and what needs an answer is 0.

Example: an answer (.6, .8), and passages (1, 0) and (0, 1), have answer_passage_1 .6, _2 .8, _3 0, _max .8, _mean .7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forage.agent.episode import Episode
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.testtime.scorers import (
    agreement,
    confidence,
    hit_agreement,
    probability,
    relevance,
    shown,
    support,
    well_formed,
)

if TYPE_CHECKING:
    from forage.store.embedder import Embedder

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]  # (N, F)
NUMBERED = re.compile(r"\[\d+\] ")  # how a passage begins in a tool response

FIRST = 3  # passages with a cosine of their own
MOST = 10  # passages that are embedded
OF_PASSAGES = (*map(str, range(1, FIRST + 1)), "max", "mean")
SCALARS = (
    "answered", "open",
    "question_answer", "question_query", "query_answer",
    *(f"question_passage_{which}" for which in OF_PASSAGES), *(f"answer_passage_{which}" for which in OF_PASSAGES),
    "other_answers", "answer_other_passages", "other_passages",
    "agreement", "hit_agreement", "support", "relevance", "confidence", "well_formed", "turn_confidence",
    "answer_words", "repeated_words", "searches", "hits",
)  # fmt: skip
PRODUCTS = ("question*answer", "question*passage", "answer*passage")
OPEN = SCALARS.index("open")


def features(embedder: Embedder, protocol: Protocol, question: Question, episodes: Sequence[Episode]) -> Rows:
    """(N, F): a row for each of the candidates, which are compared with each other."""
    vectors = embedded(embedder, question.question, [Seen.of(protocol, episode) for episode in episodes])
    columns = cosines(vectors) | counted(protocol, question, episodes)
    scalars_NS = np.stack([np.asarray(columns[name], np.float64) for name in SCALARS], axis=1)
    return np.concatenate([scalars_NS, products(vectors)], axis=1).astype(np.float32)


@dataclass(frozen=True)
class Seen:
    """The texts of a candidate; the answer and the last query are empty if there is none."""

    answer: str
    query: str
    passages: tuple[str, ...]
    """The first MOST that the policy read, each once."""

    @classmethod
    def of(cls, protocol: Protocol, episode: Episode) -> Seen:
        lines = (line for response in shown(protocol, episode) for line in response.splitlines())
        passages = dict.fromkeys(NUMBERED.sub("", line, count=1) for line in lines if NUMBERED.match(line))
        return cls(episode.answer, episode.searches[-1].query if episode.searches else "", tuple(passages)[:MOST])


@dataclass(frozen=True)
class Vectors:
    """Embeddings of length 1, or zeros where there is no text."""

    question_D: Floats
    answers_ND: Floats
    queries_ND: Floats
    passages: Sequence[Floats]
    """(P, D) for each candidate."""

    @property
    def firsts_ND(self) -> Floats:
        """Each candidate's first passage."""
        return self._best([0] * len(self.passages))

    @property
    def nearest_to_question_ND(self) -> Floats:
        return self._best([_argmax(found_PD @ self.question_D) for found_PD in self.passages])

    @property
    def nearest_to_answer_ND(self) -> Floats:
        pairs = zip(self.passages, self.answers_ND, strict=True)
        return self._best([_argmax(found_PD @ answer_D) for found_PD, answer_D in pairs])

    def _best(self, places: Sequence[int]) -> Floats:
        nothing_D = np.zeros_like(self.question_D)
        return np.stack(
            [found[place] if len(found) else nothing_D for found, place in zip(self.passages, places, strict=True)]
        )


def embedded(embedder: Embedder, question: str, seen: Sequence[Seen]) -> Vectors:
    """Each text is embedded once, and in an order that does not depend on that of the candidates."""
    asked = _encoded(embedder.encode_queries, [question, *(one.query for one in seen)])
    told = _encoded(embedder.encode_passages, [text for one in seen for text in (one.answer, *one.passages)])
    question_D = asked[question]
    nothing_D = np.zeros_like(question_D)
    return Vectors(
        question_D,
        np.stack([told.get(one.answer, nothing_D) for one in seen]),
        np.stack([asked.get(one.query, nothing_D) for one in seen]),
        [np.array([told[text] for text in one.passages]).reshape(-1, len(question_D)) for one in seen],
    )


def _encoded(encode: Callable[[Sequence[str]], Rows], texts: Iterable[str]) -> dict[str, Floats]:
    """Vectors by text; none for an empty one."""
    distinct = sorted({text for text in texts if text})
    return dict(zip(distinct, encode(distinct).astype(np.float64), strict=True))


def cosines(vectors: Vectors) -> dict[str, Floats]:
    """The columns that compare embeddings."""
    question_D, answers_ND, queries_ND = vectors.question_D, vectors.answers_ND, vectors.queries_ND
    firsts_ND, each = vectors.firsts_ND, vectors.passages
    return {
        "question_answer": answers_ND @ question_D, "question_query": queries_ND @ question_D,
        "query_answer": (queries_ND * answers_ND).sum(axis=1),
        "other_answers": with_others(answers_ND, answers_ND),
        "answer_other_passages": with_others(answers_ND, firsts_ND),
        "other_passages": with_others(firsts_ND, firsts_ND),
        **of_passages("question_passage", [found_PD @ question_D for found_PD in each]),
        **of_passages("answer_passage", [f_PD @ answer_D for f_PD, answer_D in zip(each, answers_ND, strict=True)]),
    }  # fmt: skip


def of_passages(name: str, cosines_of: Sequence[Floats]) -> dict[str, Floats]:
    """Columns of the first passages' cosines, their greatest and their mean; 0 where there is none."""
    rows = [
        [*found[:FIRST], *[0.0] * (FIRST - len(found)), *((found.max(), found.mean()) if len(found) else (0.0, 0.0))]
        for found in cosines_of
    ]
    return {f"{name}_{which}": column for which, column in zip(OF_PASSAGES, np.array(rows).T, strict=True)}


def with_others(one_ND: Floats, other_ND: Floats) -> Floats:
    """Each candidate's mean product with the others' vectors; 0 if it is alone.

    Example: answers (1, 0), (1, 0) and (0, 1), with themselves, give .5, .5 and 0.
    """
    alike_NN = one_ND @ other_ND.T
    return np.asarray((alike_NN.sum(axis=1) - alike_NN.diagonal()) / max(1, len(alike_NN) - 1))


def counted(protocol: Protocol, question: Question, episodes: Sequence[Episode]) -> dict[str, Sequence[float]]:
    """The columns that need no embeddings."""
    asked = (protocol, question, episodes)
    return {
        "answered": [float(bool(episode.answer)) for episode in episodes],
        "open": [float(episode.stop == "search") for episode in episodes],
        "agreement": agreement(*asked), "hit_agreement": hit_agreement(*asked), "support": support(*asked),
        "relevance": relevance(*asked), "confidence": confidence(*asked), "well_formed": well_formed(*asked),
        "turn_confidence": [probability(episode) for episode in episodes],
        "answer_words": [math.log1p(len(episode.answer.split())) for episode in episodes],
        "repeated_words": [repeated_words(episode.answer) for episode in episodes],
        "searches": [float(len(episode.searches)) for episode in episodes],
        "hits": [float(len(episode.hits)) for episode in episodes],
    }  # fmt: skip


def repeated_words(text: str) -> float:
    """Share of a text's words that occurred before. Example: "rest and rest and ice" has 2 of 5."""
    words = text.lower().split()
    return 1 - len(set(words)) / len(words) if words else 0.0


def products(vectors: Vectors) -> Floats:
    """(N, 3 D): the PRODUCTS side by side, with the passage that is nearest to the question or to the answer."""
    return np.concatenate(
        [
            vectors.question_D * vectors.answers_ND,
            vectors.question_D * vectors.nearest_to_question_ND,
            vectors.answers_ND * vectors.nearest_to_answer_ND,
        ],
        axis=1,
    )


def _argmax(values_P: Floats) -> int:
    return int(values_P.argmax()) if len(values_P) else 0
