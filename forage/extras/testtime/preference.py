"""Preference: a learned scorer of candidate episodes, trained on which of two candidates is better.

Paper: rStar-Math, https://arxiv.org/abs/2501.04519, fine-tunes a language model to score steps (its process preference
model), by the pairwise loss of Bradley and Terry on pairs of a good and a bad step.

Here: the same loss, each pair weighted by how far its Q-values are apart, for a weighted sum of features (features.py).
That is a logistic regression on the differences between the two candidates' features.

Only differences within a question are learnt, so scores are shifted to be .5 on average, for finished episodes and for
those that go on alike; a sigmoid brings them between 0 and 1.

scorer.json, all there is in a scorer's folder, has the weights, says what they were trained on and how often they are
right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forage.agent.episode import Episode
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.errors import UserError
from forage.extras.testtime.features import FEATURES, OPEN, Floats, Rows, features
from forage.manifest import read_manifest
from forage.store.card import SAME_MODEL
from forage.store.embedder import Embedder

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
    scores_N: Floats = 1 / (1 + np.exp(-(rows_NF @ weights_F + intercept)))
    return scores_N


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
        found: list[float] = scores(rows_NF, self.weights_F, self.intercept).tolist()
        return found

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
