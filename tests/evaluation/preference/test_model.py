"""The pairwise loss by hand; and that a head learns an order, the same each time, without touching others' draws."""

import math

import numpy as np
import pytest
import torch

from forage.errors import UserError
from forage.evaluation.preference.features import OPEN, PRODUCTS, SCALARS
from forage.evaluation.preference.model import Head, Learning, Pairs, bradley_terry, fit

WIDTH = len(SCALARS) + len(PRODUCTS) * 4
KNOWN = SCALARS.index("support")


def rows_of(count, seed=0, by=KNOWN):
    """Random rows, and each one's worth, which is feature `by`."""
    rows_NF = np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)
    rows_NF[:, OPEN] = np.arange(count) % 2
    return rows_NF, rows_NF[:, by].astype(np.float64)


def pairs_by(worth_N, group=8):
    """All pairs among every eight rows."""
    number_N = np.arange(len(worth_N)) // group
    together_NN = number_N[:, None] == number_N[None, :]
    better, worse = np.nonzero((worth_N[:, None] > worth_N[None, :]) & together_NN)
    return Pairs(better, worse, worth_N[better] - worth_N[worse])


def right(head, rows_NF, worth_N):
    """Share of all pairs in the right order."""
    scores, pairs = np.array(head.scores(rows_NF)), pairs_by(worth_N)
    return (scores[pairs.better_P] > scores[pairs.worse_P]).mean()


def test_the_loss_by_hand():
    def loss(better, worse, weights):
        return bradley_terry(*map(torch.tensor, (better, worse, weights))).item()

    assert loss([1.0], [0.0], [1.0]) == pytest.approx(math.log(1 + 1 / math.e))
    assert loss([1.0], [1.0], [0.2]) == pytest.approx(math.log(2))
    assert loss([1.0, 1.0], [0.0, 1.0], [3.0, 1.0]) == pytest.approx((3 * 0.313262 + 0.693147) / 4, abs=1e-5)


@pytest.mark.parametrize("by", [KNOWN, len(SCALARS) + 1])
def test_an_order_is_learnt_from_pairs_and_holds_for_other_rows(by):
    """From a scalar, and from one number of a product of embeddings."""
    rows_NF, worth_N = rows_of(400, by=by)
    head = fit(rows_NF, pairs_by(worth_N), Learning())
    assert right(head, rows_NF, worth_N) > 0.9
    assert right(head, *rows_of(80, seed=1, by=by)) > 0.8


def test_without_rank_products_count_for_nothing():
    rows_NF, worth_N = rows_of(20)
    head = fit(rows_NF, pairs_by(worth_N), Learning(rank=0, steps=15))
    changed_NF = rows_NF.copy()
    changed_NF[:, len(SCALARS) :] = 0
    assert head.scores(changed_NF) == head.scores(rows_NF)


def test_equal_inputs_give_an_equal_head_and_other_draws_stay():
    rows_NF, worth_N = rows_of(20)
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    one, two = (fit(rows_NF, pairs_by(worth_N), Learning(steps=10)) for _ in range(2))
    assert torch.rand(1) == wanted
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    other = fit(rows_NF, pairs_by(worth_N), Learning(steps=10, seed=1))
    assert one.scores(rows_NF) != other.scores(rows_NF)


def test_scores_are_between_0_and_1_and_centred_for_finished_and_open_ones():
    rows_NF, worth_N = rows_of(40)
    head = fit(rows_NF, pairs_by(worth_N), Learning(steps=100))
    scores_N = np.array(head.scores(rows_NF))
    assert ((scores_N > 0) & (scores_N < 1)).all()
    raw_N = np.log(scores_N / (1 - scores_N))
    for kind in (0, 1):
        assert raw_N[rows_NF[:, OPEN] == kind].mean() == pytest.approx(0, abs=1e-4)
    assert head.scores(rows_NF[:0]) == []


def test_a_feature_that_never_varied_and_one_far_out_do_no_harm():
    rows_NF, worth_N = rows_of(20)
    rows_NF[:, 0] = 1
    head = fit(rows_NF, pairs_by(worth_N), Learning(steps=10))
    far_NF = rows_NF.copy()
    far_NF[:, 3] = 1e9
    assert np.isfinite(head.scores(far_NF)).all()
    assert Head(WIDTH, 4, 2).scores(rows_NF)  # untrained, it scores too


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"hidden": 0}, "--hidden 0"), ({"rank": -1}, "--rank -1"), ({"weight_decay": -1.0}, "--weight-decay -1.0")],
)
def test_what_cannot_be_is_told(changed, told):
    with pytest.raises(UserError, match=told):
        Learning(**changed).check()
