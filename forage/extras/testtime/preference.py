"""Preference: a learned scorer of candidate episodes, trained on which of two candidates is better.

Paper: rStar-Math, https://arxiv.org/abs/2501.04519, fine-tunes a language model to score steps (its process preference
model), by the pairwise loss of Bradley and Terry on pairs of a good and a bad step.

Here: the same loss, each pair weighted by how far its Q-values are apart, for a weighted sum of features.
That is a logistic regression on the differences between the two candidates' features.

Only differences within a question are learnt, so scores are shifted to be .5 on average, for finished episodes and for
those that go on alike; a sigmoid brings them between 0 and 1.

scorer.json, all there is in a scorer's folder, has the weights, says what they were trained on and how often they are
right.

Its features are what can be seen of a question's candidate episodes without knowing its answer: the written scorers,
what is simply counted, and cosines between the embeddings of question, answer and passages shown. An episode that goes
on has no answer yet: `open` is 1, and what needs an answer is 0. More features, such as the numbers of searches and
hits, made a scorer worse on held-out pairs of the sample data.

Example: an answer (.6, .8) beside passages (1, 0) and (0, 1) has the cosine .8 with the nearest of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forage.agent.episode import Episode
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.errors import UserError
from forage.extras.testtime.scorers import agreement, confidence, relevance, shown, support, well_formed
from forage.manifest import read_manifest
from forage.store.embedder import Embedder
from forage.store.manifest import SAME_MODEL

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


CARD = "scorer.json"
DEVIATION_FLOOR = 1e-6  # a feature that hardly varies is left as it is
MAKE_IT = "make one with python -m forage.extras.testtime.train_scorer"


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of candidates of one question, by their rows."""

    better_P: NDArray[np.int64]
    worse_P: NDArray[np.int64]
    weights_P: NDArray[np.float64]
    """How much better: the difference of their Q-values."""

    def __len__(self) -> int:
        return len(self.better_P)

    def some(self, mine_P: NDArray[np.bool_]) -> Pairs:
        return Pairs(self.better_P[mine_P], self.worse_P[mine_P], self.weights_P[mine_P])


def fit(rows_NF: Rows, pairs: Pairs) -> tuple[Floats, float]:
    """The weights by which the better one of each pair scores higher, and an intercept.

    The features `open` and the intercept shift the scores of these rows to 0 on average, of finished episodes and of
    those that go on.
    """
    from sklearn.linear_model import LogisticRegression  # here, as it takes a second

    deviations_F = rows_NF.std(axis=0, dtype=np.float64)
    deviations_F = np.where(deviations_F > DEVIATION_FLOOR, deviations_F, 1)
    apart_PF = (rows_NF[pairs.better_P] - rows_NF[pairs.worse_P]) / deviations_F
    model = LogisticRegression(fit_intercept=False)
    model.fit(np.concatenate([apart_PF, -apart_PF]), np.repeat([1, 0], len(pairs)), np.tile(pairs.weights_P, 2))
    weights_F: Floats = model.coef_[0] / deviations_F
    weights_F[OPEN] = 0
    scores_N, open_N = rows_NF @ weights_F, rows_NF[:, OPEN] == 1
    finished, going_on = (
        float(of_kind.mean()) if len(of_kind) else 0.0 for of_kind in (scores_N[~open_N], scores_N[open_N])
    )
    weights_F[OPEN] = finished - going_on
    return weights_F, -finished


def scores(rows_NF: Rows, weights_F: Floats, intercept: float) -> Floats:
    """Between 0 and 1. Example: features (2, 0), weights (.5, 3), intercept -1 give .5."""
    return 1 / (1 + np.exp(-(rows_NF @ weights_F + intercept)))


@dataclass(frozen=True, eq=False)
class Preference:
    """A Scorer, of finished episodes and of ones that go on (EpisodeBuilder.so_far) alike.

    Example: BestOf(Preference.load(Path("models/scorer"), embedder), n=8). Scores are between 0 and 1, and say only
    which of a question's candidates are better; those of two questions can't be compared.
    """

    weights_F: Floats
    intercept: float
    embedder: Embedder

    def __call__(self, protocol: Protocol, question: Question, episodes: Sequence[Episode]) -> list[float]:
        if not episodes:
            return []
        rows_NF = features(self.embedder, protocol, question, episodes)
        return scores(rows_NF, self.weights_F, self.intercept).tolist()

    @classmethod
    def load(cls, folder: Path, embedder: Embedder) -> Preference:
        """The scorer in a folder of train_scorer.py; refuses one that was trained with another embedder."""
        card, now_D = read_manifest(folder / CARD, MAKE_IT), embedder.probe()
        try:
            weights_F = np.array([card["weights"][name] for name in FEATURES], np.float64)
            intercept, then_D = float(card["intercept"]), np.array(card["probe"], np.float32)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder} is no scorer of this version ({type(error).__name__}); {MAKE_IT}") from error
        if then_D.shape != now_D.shape or float(then_D @ now_D) < SAME_MODEL:
            raise UserError(
                f"{folder} was trained with another embedder than {embedder.name}, or with other weights of it; train "
                "the scorer again, or search a store with that embedder"
            )
        return cls(weights_F, intercept, embedder)
