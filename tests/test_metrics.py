"""Scores of answers and rankings, by hand."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.metrics import common_length, rouge_l, token_f1


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
