"""Scores of answers and rankings, by hand."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.metrics import (
    bootstrapped,
    by_chance,
    by_document,
    clear,
    common_length,
    needed,
    rouge_l,
    shown,
    span,
    token_f1,
    verdict,
)


def test_token_f1_by_hand():
    assert token_f1("a big toe", "the big red toe") == pytest.approx(0.8)
    assert token_f1("", "x") == token_f1("x", "") == token_f1("", "") == 0
    assert token_f1("big big", "big") == pytest.approx(2 / 3)


def test_rouge_l_by_hand():
    assert rouge_l("the toe is red", "red is the big toe") == pytest.approx(4 / 9)
    assert rouge_l("Rest, and ice.", "rest AND ice") == 1
    assert rouge_l("", "x") == rouge_l("x", "") == rouge_l("?", "!") == rouge_l("a", "b") == 0


@given(one=st.text("abcd", max_size=12), other=st.text("abcd", max_size=12))
def test_the_longest_common_subsequence_equals_its_definition(one, other):
    @cache
    def longest(i, j):
        if i == len(one) or j == len(other):
            return 0
        return 1 + longest(i + 1, j + 1) if one[i] == other[j] else max(longest(i + 1, j), longest(i, j + 1))

    assert common_length(list(one), list(other)) == longest(0, 0)


def test_the_width_is_that_of_the_normal_distribution_where_there_are_many():
    values = np.random.default_rng(1).normal(2, 1, 1000)
    interval = bootstrapped(values)
    wanted = 1.96 * values.std() / 1000**0.5
    assert interval["mean"] - interval["low"] == pytest.approx(wanted, rel=0.1)
    assert interval["high"] - interval["mean"] == pytest.approx(wanted, rel=0.1)
    assert bootstrapped(values) == interval


def test_an_interval_is_clear_without_zero_in_it():
    for low, high, expected in ((0.1, 0.25, True), (-0.1, 0.2, False), (-0.3, -0.1, True), (0, 0.1, False)):
        assert clear({"mean": 0.0, "low": low, "high": high}) is expected
    assert span({"mean": 0.2, "low": 0.1, "high": 0.25}) == "0.100 to 0.250"


def test_how_many_questions_a_difference_takes_by_hand():
    # Mean .25, deviation .5: (2.8 * .5 / .25)^2 = 31.36. Of six that differ there must be four times as many: 24.
    assert needed([1, 0, 0, 0]) == needed([-1, 0, 0, 0]) == 32
    assert needed([0.5, 0.5]) == needed([0.5]) == 6  # fewer all go one way by chance too often
    assert needed([0.5, 0.5, 0.5, 0]) == 8


OTHERS = "whether that holds for another seed, other data or another measure"
CHANCE, ALIKE = "no difference that chance alone could not make", "which is better, as their means are alike"


@pytest.mark.parametrize(
    ("gains", "shown", "size", "not_shown"),
    [
        ([0.5] * 6, "new is better than old", "+0.500 (+0.500 to +0.500)", OTHERS),
        ([-0.5] * 6, "old is better than new", "-0.500 (-0.500 to -0.500)", OTHERS),
        ([0.5] * 5, "nothing, as only 5 of them differ", "+0.500 (+0.500 to +0.500)", 6),
        ([1, 0, 0, 0], CHANCE, "+0.250 (+0.000 to +0.750)", 32),
        ([1, 1, 1, 0] * 3, CHANCE, "+0.750 (+0.500 to +1.000)", 13),  # 8 should do, but 12 have not
        ([0.5, -0.25] * 20 + [-0.125] * 38, CHANCE, "+0.003 (-0.062 to +0.069)", "68,000"),
        ([0, 0], CHANCE, "+0.000 (+0.000 to +0.000)", ALIKE),
        ([0.1, 0.2, -0.3], CHANCE, "+0.000 (-0.300 to +0.200)", ALIKE),
        ([1 / 3] * 12, "new is better than old", "+0.333 (+0.333 to +0.333)", OTHERS),
    ],
)
def test_a_verdict_says_what_is_shown_and_what_is_not(gains, shown, size, not_shown):
    if not_shown not in (OTHERS, ALIKE):
        not_shown = f"which is better; about {not_shown} questions would show a difference of this size"
    asked = f"in mrr on {len(gains)} questions"
    wanted = f"Shown: {shown}; new minus old is {size} {asked}. Not shown: {not_shown}."
    assert verdict("new", "old", "mrr", gains) == wanted


def test_how_likely_chance_alone_is_by_hand():
    assert by_chance([0.5] * 6) == pytest.approx(2 / 64, abs=0.01)
    assert by_chance([1, -1]) > 0.5


def alike(count, samples):
    """Differences of two policies that are alike, many zeros and rare large ones: (sample, question) of each kind."""
    draw = np.random.default_rng(count)
    kinds = [((0, 0.5, -0.5), (0.7, 0.15, 0.15)), ((0, 1, -0.25), (0.6, 0.08, 0.32)), ((0, 1, -0.5), (0.7, 0.1, 0.2))]
    return [draw.exponential(1, (samples, count)) - 1, *(draw.choice(a, (samples, count), p=p) for a, p in kinds)]


@pytest.mark.parametrize(
    ("count", "samples", "least"), [(12, 300, 0.4), (32, 150, 0.7), (100, 60, 0.9), (300, 30, 0.99)]
)
def test_little_is_shown_where_there_is_nothing_and_much_where_there_is(count, samples, least):
    nothing = alike(count, samples)
    assert max(np.mean([shown(bootstrapped(gains), gains) for gains in kind]) for kind in nothing) <= 0.08
    some = np.concatenate(nothing)[::4] + 0.25
    assert np.mean([shown(bootstrapped(gains), gains) for gains in some]) >= least


def test_questions_of_one_document_are_no_independent_evidence():
    assert by_document([1, 1, 0], ["a", "a", "b"]) == pytest.approx([2 / 1.5, 0])
    gains = [0.5] * 12
    assert verdict("new", "old", "mrr", gains, list("abcdefabcdef")).startswith("Shown: new is better than old; ")
    says = verdict("new", "old", "mrr", gains, list("abcabcabcabc"))
    assert says.startswith(
        "Shown: nothing, as only 3 of them differ; new minus old is +0.500 (+0.500 to +0.500) in mrr "
    )
    assert "on 12 questions of 3 documents. Not shown: which is better; about 24 questions " in says
