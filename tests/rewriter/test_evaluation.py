"""Evaluation: measures and differences by hand, and the table."""

import math

import pytest

from forage.errors import UserError
from forage.metrics import span
from forage.rewriter.data import Row
from forage.rewriter.evaluation import (
    RAW,
    difference,
    load_measurements,
    measure,
    save_measurements,
)

ROWS = [Row("one", ("a", "b"), (1,)), Row("two", ("c",), (2,))]


def search(queries):
    return [query.split() for query in queries]


def ways():
    return [measure(RAW, ROWS, ["x", "x c"], search, 2), measure("better, append", ROWS, ["a b", "c"], search, 2)]


def test_ways_by_hand():
    raw, better = ways()
    assert (raw.recall, raw.mrr) == ([0, 1], [0, 0.5])
    assert raw.ndcg == [0, pytest.approx(1 / math.log2(3))]
    assert (better.recall, better.ndcg, better.mrr) == ([1, 1], [1, 1], [1, 1])
    assert difference(better, raw)["mean"] == 0.5
    assert difference(raw, raw) == {"mean": 0, "low": 0, "high": 0}
    assert span({"mean": 0, "low": 0.1, "high": 0.25}) == "0.100 to 0.250"


def test_measurements_are_saved_and_loaded(tmp_path):
    save_measurements(tmp_path / "ways.json", ways())
    assert load_measurements(tmp_path / "ways.json") == ways()
    (tmp_path / "ways.json").write_text('[{"way": 1}]')
    with pytest.raises(UserError, match=r"ways.json is damaged"):
        load_measurements(tmp_path / "ways.json")
