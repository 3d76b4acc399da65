"""Features: what can be seen of a question's candidate episodes without knowing its answer, as a row of numbers each.

The written scorers, what is simply counted, and cosines between the embeddings of question, answer and passages shown.
An episode that goes on has no answer yet: `open` is 1, and what needs an answer is 0. More features, such as the
numbers of searches and hits, made a scorer worse on held-out pairs of the sample data.

Example: an answer (.6, .8) beside passages (1, 0) and (0, 1) has the cosine .8 with the nearest of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forage.agent.episode import Episode
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.extras.testtime.scorers import agreement, confidence, relevance, shown, support, well_formed

if TYPE_CHECKING:
    from forage.store.embedder import Embedder

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]  # (N, F)
NUMBERED = re.compile(r"\[\d+\] ")  # how a passage begins in a tool response
MOST = 10  # passages that are embedded

FEATURES = (
    "open", "answer_words", "agreement", "support", "relevance", "confidence", "well_formed",
    "question_answer", "question_passage", "answer_passage",
)  # fmt: skip
OPEN = FEATURES.index("open")


def features(embedder: Embedder, protocol: Protocol, question: Question, episodes: Sequence[Episode]) -> Rows:
    """(N, F): a row for each of the candidates, which are compared with each other."""
    scorers = (agreement, support, relevance, confidence, well_formed)
    answers = [episode.answer for episode in episodes]
    columns = {
        "open": [float(episode.stop == "search") for episode in episodes],
        "answer_words": [math.log1p(len(answer.split())) for answer in answers],
        **{scorer.__name__: scorer(protocol, question, episodes) for scorer in scorers},
        **cosines(embedder, question.question, answers, [passages_of(protocol, episode) for episode in episodes]),
    }
    return np.stack([np.asarray(columns[name], np.float32) for name in FEATURES], axis=1)


def passages_of(protocol: Protocol, episode: Episode) -> list[str]:
    """The first that the policy read, each once."""
    lines = (line for response in shown(protocol, episode) for line in response.splitlines())
    return list(dict.fromkeys(NUMBERED.sub("", line, count=1) for line in lines if NUMBERED.match(line)))[:MOST]


def cosines(
    embedder: Embedder, question: str, answers: Sequence[str], passages: Sequence[Sequence[str]]
) -> dict[str, Floats | list[float]]:
    """The columns that compare embeddings, with the nearest passage; 0 where there is no text to compare with."""
    [question_D] = embedder.encode_queries([question])
    texts = sorted({text for each in (answers, *passages) for text in each if text})  # in whatever order they came
    vector_of = dict(zip(texts, embedder.encode_passages(texts), strict=True))
    answers_ND = np.stack([vector_of.get(answer, np.zeros_like(question_D)) for answer in answers])

    def nearest(text_D: Rows, shown: Sequence[str]) -> float:
        return max((float(text_D @ vector_of[passage]) for passage in shown), default=0.0)

    return {
        "question_answer": answers_ND @ question_D,
        "question_passage": [nearest(question_D, shown) for shown in passages],
        "answer_passage": [nearest(*pair) for pair in zip(answers_ND, passages, strict=True)],
    }
