"""The best k, ties included, and fusion by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forage.store.fusion import (
    Ranking,
    earned_weights,
    fuse,
    reciprocal_rank_fusion,
    top_k,
    weighted_score_fusion,
)
from forage.store.options import Fusion
from forage.store.vectors import exact_nearest


def by_sorting(scores, k, above=-np.inf):
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return [i for i in order if scores[i] > above][:k]


@given(
    scores=arrays(np.float64, st.integers(1, 400), elements=st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0])),
    k=st.integers(1, 30),
    above=st.sampled_from([-np.inf, 0.0]),
)
def test_top_k_equals_a_full_sort_with_ties_by_index(scores, k, above):
    assert top_k(scores, k, above).tolist() == by_sorting(scores, k, above)


def ranking(**scores):
    ids = [int(name[1:]) for name in scores]
    return Ranking(np.array(ids), np.array(list(scores.values()), float))


def test_reciprocal_rank_fusion_by_hand():
    fused = reciprocal_rank_fusion([ranking(d7=9, d3=8), ranking(d3=2, d5=1)], (1.0, 1.0))
    assert fused.ids.tolist() == [3, 7, 5]
    assert fused.scores.tolist() == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62])


def test_equal_scores_share_a_reciprocal_rank():
    fused = reciprocal_rank_fusion([ranking(d1=5, d2=5, d3=4)], (1.0,))
    assert fused.scores.tolist() == pytest.approx([1 / 61, 1 / 61, 1 / 63])


def test_weighted_score_fusion_by_hand():
    rankings = [ranking(d1=4, d2=2, d3=1), ranking(d2=0.9, d1=0.8)]
    fused = weighted_score_fusion(rankings, (0.5, 0.5), ranges=((0, None), (None, None)))
    # d2: .5 * 2 / 4 + .5 * 1; d1: .5 * 1 + .5 * 0; d3: .5 * 1 / 4
    assert fused.ids.tolist() == [2, 1, 3]
    assert fused.scores.tolist() == pytest.approx([0.75, 0.5, 0.125])
    lowest = weighted_score_fusion(rankings, (0.5, 0.5), ranges=((None, None), (None, None)))
    # d2: .5 * (2 - 1) / (4 - 1) + .5; d1: .5; d3: 0
    assert lowest.scores.tolist() == pytest.approx([0.5 / 3 + 0.5, 0.5, 0.0])


def test_a_range_with_an_end_keeps_how_good_the_best_is():
    fused = weighted_score_fusion([ranking(d1=0.5, d2=0.25), ranking(d2=3)], (0.4, 0.6), ranges=((0, 1), (0, None)))
    assert fused.ids.tolist() == [2, 1]
    assert fused.scores.tolist() == pytest.approx([0.4 * 0.25 + 0.6, 0.4 * 0.5])


DENSE, SPARSE, TITLE = ranking(d1=0.9, d2=0.8, d3=0.7), ranking(d3=8, d2=4), ranking(d1=0.25, d2=0.0, d3=0.0)


def test_words_get_the_weight_that_no_title_earns():
    assert earned_weights((0.5, 0.1, 0.4), TITLE) == pytest.approx((0.5, 0.4, 0.4))
    assert earned_weights((0.5, 0.1, 0.4), ranking(d1=1)) == pytest.approx((0.5, 0.1, 0.4))
    assert earned_weights((0.5, 0.1, 0.4), ranking()) == pytest.approx((0.5, 0.5, 0.4))
    fused = fuse(Fusion(dense_weight=0.5, title_weight=0.4), DENSE, SPARSE, TITLE)
    # d1: .5 * 1 + .4 * .25; d2: .5 * .5 + .4 * 4 / 8; d3: .4 * 1
    assert dict(zip(fused.ids.tolist(), fused.scores.tolist(), strict=True)) == pytest.approx({1: 0.6, 2: 0.45, 3: 0.4})


def test_fusion_breaks_ties_by_id_and_takes_empty_rankings():
    empty = Ranking(np.zeros(0, np.int64), np.zeros(0))
    assert weighted_score_fusion([ranking(d4=1, d2=1), empty], (0.5, 0.5), ((0, None), (0, 1))).ids.tolist() == [2, 4]
    assert weighted_score_fusion([empty, empty], (0.5, 0.5), ((0, 1), (None, None))).ids.tolist() == []


def test_exact_neighbours_do_not_depend_on_the_batch():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((3000, 48)).astype(np.float32)
    matrix[1000:1010] = matrix[7]  # ties
    queries = rng.standard_normal((70, 48)).astype(np.float32)
    queries[3] = matrix[7]
    together = list(exact_nearest(matrix, queries, 12))
    alone = [next(iter(exact_nearest(matrix, query[None], 12))) for query in queries]
    for one, other in zip(together, alone, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.scores.tolist() == other.scores.tolist()
    assert together[3].ids[:11].tolist() == [7, *range(1000, 1010)]
    expected = np.argsort(-(queries[0].astype(float) @ matrix.T.astype(float)), kind="stable")[:12]
    assert together[0].ids.tolist() == expected.tolist()
