"""Evaluation: measures and differences by hand, and the table."""

import json
import math

import pytest

from forage.metrics import span
from forage.rewriter.data import Row
from forage.rewriter.evaluation import (
    RAW,
    difference,
    measure,
    print_measurements,
    result_rows,
)

ROWS = [Row("one", ("a", "b"), (1,)), Row("two", ("c",), (2,))]


def search(queries):
    return [query.split() for query in queries]


def ways():
    return [measure(RAW, ROWS, ["x", "x c"], search, 2), measure("better", ROWS, ["a b", "c"], search, 2)]


def test_ways_by_hand():
    raw, better = ways()
    assert (raw.recall, raw.mrr) == ([0, 1], [0, 0.5])
    assert raw.ndcg == [0, pytest.approx(1 / math.log2(3))]
    assert (better.recall, better.ndcg, better.mrr) == ([1, 1], [1, 1], [1, 1])
    assert difference(better, raw)["mean"] == 0.5
    assert difference(raw, raw) == {"mean": 0, "low": 0, "high": 0}
    assert span({"mean": 0, "low": 0.1, "high": 0.25}) == "0.100 to 0.250"


def test_results_and_their_table(capsys):
    rows = result_rows(ways())
    assert json.loads(json.dumps(rows))[1]["over_raw"]["mean"] == 0.5
    assert [(row["way"], row["questions"], row["mrr"]) for row in rows] == [(RAW, 2, 0.25), ("better", 2, 1.0)]
    print_measurements(ways(), 2)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "raw query  recall@2 0.500 (0.000 to 1.000), nDCG 0.315",
        "better     recall@2 1.000 (1.000 to 1.000), nDCG 1.000, over raw query +0.500 (0.000 to 1.000)",
    ]
