"""Evaluation: measures and differences by hand."""

import math

import pytest

from forage.extras.rewriter.data import Row
from forage.extras.rewriter.training import (
    RAW,
    gains,
    measure,
)

ROWS = [Row("one", ("a", "b"), (1,)), Row("two", ("c",), (2,))]


def search(queries):
    return [query.split() for query in queries]


def ways():
    return [measure(RAW, ROWS, ["x", "x c"], search, 2), measure("better", ROWS, ["a b", "c"], search, 2)]


def test_ways_by_hand():
    raw, better = ways()
    assert raw.values == {"recall": [0, 1], "mrr": [0, 0.5], "ndcg": [0, pytest.approx(1 / math.log2(3))]}
    assert list(better.values.values()) == [[1, 1]] * 3
    assert gains(better, raw) == [1, 0]
    assert gains(better, raw, "mrr") == [1, 0.5]
