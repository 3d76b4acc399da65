"""Accuracy: how often a scorer puts the better one of two candidates first, beside what the written scorers do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forage.evaluation.preference.examples import Examples, Integers
from forage.evaluation.preference.features import SCALARS, Floats
from forage.evaluation.preference.model import Pairs
from forage.evaluation.scorers import LOOKS_GOOD, WRITTEN
from forage.statistics import Interval, bootstrapped

LEARNED = "learned"


def accuracies(examples: Examples, pairs: Pairs, learned_N: Floats) -> dict[str, Interval]:
    """Each scorer's accuracy on the same pairs, with 95 % bootstrap intervals over questions; empty without a pair."""
    if not len(pairs):
        return {}
    scores = {LEARNED: learned_N, **written_scores(examples)}
    return {
        name: bootstrapped(by_question(scores_N, pairs, examples.question_N).tolist())
        for name, scores_N in scores.items()
    }


def written_scores(examples: Examples) -> Mapping[str, Floats]:
    """All but what best_of_8 chooses by are features; that is a mean of some of them."""
    columns = {
        scorer: examples.features_NF[:, SCALARS.index(name)].astype(np.float64)
        for name, scorer in WRITTEN.items() if scorer != LOOKS_GOOD
    }  # fmt: skip
    parts, weights = zip(*LOOKS_GOOD.parts, strict=True)
    columns[LOOKS_GOOD] = np.average([columns[part] for part in parts], axis=0, weights=weights)
    return {name: columns[scorer] for name, scorer in WRITTEN.items()}


def by_question(scores_N: Floats, pairs: Pairs, question_N: Integers) -> Floats:
    """The share of each question's pairs that are scored in the right order; equal scores count a half.

    Example: scores .9, .5 and .5 for pairs (0, 1), (0, 2) and (1, 2) of one question give 2.5 of 3.
    """
    ahead_P = scores_N[pairs.better_P] - scores_N[pairs.worse_P]
    right_P = np.where(ahead_P == 0, 0.5, ahead_P > 0)
    _, place_P = np.unique(question_N[pairs.better_P], return_inverse=True)
    return np.asarray(np.bincount(place_P, right_P) / np.bincount(place_P))
