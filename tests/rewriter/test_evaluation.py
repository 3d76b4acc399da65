"""Evaluation: measures and differences by hand, and the table."""

import json
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
    print_measurements,
    result_rows,
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


def test_results_and_their_table(capsys):
    rows = result_rows(ways())
    assert json.loads(json.dumps(rows))[1]["over_raw"]["mean"] == 0.5
    assert [(row["way"], row["questions"], row["mrr"]) for row in rows] == [(RAW, 2, 0.25), ("better, append", 2, 1.0)]
    print_measurements(ways(), 2, 3)
    said = capsys.readouterr().out
    assert "better, append" in said
    assert "+0.500" in said
    assert "append: for 3 x the question, then what it wrote" in said
