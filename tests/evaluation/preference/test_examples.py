"""Pairs, combined rewards and accuracies by hand."""

import math

import numpy as np
import pytest

from forage.evaluation.preference.accuracy import LEARNED, accuracies, by_question, written_scores
from forage.evaluation.preference.examples import Examples, chosen, combined, joined, pairs_of
from forage.evaluation.preference.features import SCALARS
from forage.evaluation.preference.model import Pairs


def examples(q_values, questions, depths=None):
    count = len(q_values)
    rows_NF = np.zeros((count, len(SCALARS)), np.float32)
    rows_NF[:, SCALARS.index("support")] = np.arange(count)
    q_NR = np.array(q_values, np.float64).reshape(count, -1)
    return Examples(rows_NF, q_NR, np.array(questions), np.array(depths or [0] * count))


def listed(pairs):
    return list(zip(pairs.better_P.tolist(), pairs.worse_P.tolist(), strict=True))


def test_rewards_are_combined_as_far_as_they_exist():
    q_NR = np.array([[0.2, 0.6], [math.nan, 0.6], [math.nan, math.nan]])
    assert combined(q_NR, np.array([1.0, 3.0])) == pytest.approx([0.5, 0.6, math.nan], nan_ok=True)
    assert combined(q_NR, np.array([1.0, 0.0])) == pytest.approx([0.2, math.nan, math.nan], nan_ok=True)


def test_pairs_by_hand():
    several = examples([0.9, 0.5, 0.45], [0, 0, 0])
    pairs = pairs_of(several, several.q_NR[:, 0], 0.1)
    assert listed(pairs) == [(0, 1), (0, 2)]
    assert pairs.weights_P == pytest.approx([0.4, 0.45])
    assert listed(pairs_of(several, several.q_NR[:, 0], 0.0)) == [(0, 1), (0, 2), (1, 2)]
    equal = examples([0.5, 0.5], [0, 0])
    assert listed(pairs_of(equal, equal.q_NR[:, 0], 0.0)) == []


def test_only_candidates_of_one_question_and_depth_are_compared():
    several = examples([0.1, 0.9, 0.3, 0.8, math.nan], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0])
    assert listed(pairs_of(several, several.q_NR[:, 0], 0.05)) == [(2, 0)]
    assert listed(pairs_of(chosen(several, []), np.zeros(0), 0.05)) == []


def test_parts_are_joined_and_parted_again():
    whole = joined([examples([0.1, 0.2], [0, 1]), examples([0.3], [0])], [2, 1])
    assert whole.question_N.tolist() == [0, 1, 2]
    assert chosen(whole, [1, 2]).q_NR.tolist() == [[0.2], [0.3]]


def test_accuracy_by_hand():
    pairs = Pairs(np.array([0, 0, 1, 3]), np.array([1, 2, 2, 4]), np.ones(4))
    scores_N = np.array([0.9, 0.5, 0.5, 0.1, 0.2])
    assert by_question(scores_N, pairs, np.array([0, 0, 0, 1, 1])) == pytest.approx([2.5 / 3, 0])


def test_the_written_scorers_are_judged_on_the_same_pairs():
    several = examples([0.9, 0.5, 0.2], [0, 0, 0])  # support rises as the worth falls
    pairs = pairs_of(several, several.q_NR[:, 0], 0.05)
    found = accuracies(several, pairs, several.q_NR[:, 0])
    assert list(found) == [LEARNED, "looks_good", "agreement", "hit_agreement", "support", "relevance", "confidence",
                           "well_formed"]  # fmt: skip
    assert (found[LEARNED]["mean"], found["support"]["mean"], found["agreement"]["mean"]) == (1, 0, 0.5)
    assert written_scores(several)["looks_good"].tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    assert accuracies(several, pairs_of(several, several.q_NR[:, 0], 2.0), several.q_NR[:, 0]) == {}
