"""Scores by hand; weights that learn an order; the scorer that is read back."""

import numpy as np
import pytest

from forage.extras.testtime.preference import CARD, FEATURES, OPEN, Pairs, Preference, fit, scores
from forage.extras.testtime.train_scorer import right_share
from forage.manifest import write_manifest
from tests.refusals import refused
from tests.word_embedder import WordEmbedder

KNOWN = FEATURES.index("support")


def rows_of(count, seed=0):
    """Random rows, and each one's worth, which is a feature of them."""
    rows_NF = np.random.default_rng(seed).normal(size=(count, len(FEATURES))).astype(np.float32)
    rows_NF[:, OPEN] = np.arange(count) % 2
    return rows_NF, rows_NF[:, KNOWN].astype(np.float64)


def pairs_by(worth_N, group=8):
    """All pairs among every eight rows."""
    number_N = np.arange(len(worth_N)) // group
    together_NN = number_N[:, None] == number_N[None, :]
    better, worse = np.nonzero((worth_N[:, None] > worth_N[None, :]) & together_NN)
    return Pairs(better, worse, worth_N[better] - worth_N[worse])


def test_scores_by_hand():
    assert scores(np.array([[2, 0], [2, 1]]), np.array([0.5, 3]), -1) == pytest.approx([0.5, 1 / (1 + np.exp(-3))])


def test_an_order_is_learnt_from_pairs_and_holds_for_other_rows():
    rows_NF, worth_N = rows_of(400)
    weights_F, intercept = fit(rows_NF, pairs_by(worth_N))
    raw_N = rows_NF @ weights_F + intercept
    assert [raw_N[::2].mean(), raw_N[1::2].mean()] == pytest.approx([0, 0], abs=1e-5)  # finished, and going on
    others_NF, worth_N = rows_of(80, seed=1)
    assert right_share(scores(others_NF, weights_F, intercept), pairs_by(worth_N)) > 0.8


# The scorer


@pytest.fixture
def folder(tmp_path):
    weights = {name: 1 / number for number, name in enumerate(FEATURES, 1)}
    write_manifest(tmp_path / CARD, {"weights": weights, "intercept": -2, "probe": WordEmbedder().probe().tolist()})
    return tmp_path


def test_a_scorer_is_read_back_whatever_its_embedder_is_called(folder):
    with refused("another embedder"):
        Preference.load(folder, WordEmbedder("others", turn=3))
    read = Preference.load(folder, WordEmbedder("a/folder/of/words"))
    assert (read.weights_F.tolist(), read.intercept) == ([1 / number for number in range(1, len(FEATURES) + 1)], -2)
    write_manifest(folder / CARD, {"head": "an older version's"})
    with refused("no scorer of this version"):
        Preference.load(folder, WordEmbedder())
