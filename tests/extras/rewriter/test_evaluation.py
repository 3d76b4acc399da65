"""Evaluation: measures and differences by hand, and the table."""

import json
import math

import pytest

from forage.extras.rewriter.data import Row
from forage.extras.rewriter.evaluation import (
    RAW,
    Evaluation,
    gains,
    hopeless,
    measure,
    print_measurements,
    result_rows,
)
from forage.extras.rewriter.options import Options

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
    assert gains(better, raw) == [1, 0]
    assert gains(better, raw, "mrr") == [1, 0.5]


def test_results_and_their_table(capsys):
    rows = result_rows(ways())
    assert json.loads(json.dumps(rows))[1]["over_raw"]["mean"] == 0.5
    assert [(row["way"], row["questions"], row["mrr"]) for row in rows] == [(RAW, 2, 0.25), ("better", 2, 1.0)]
    print_measurements(ways(), 2)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "raw query  recall@2 0.500 (0.000 to 1.000), nDCG 0.315",
        "better     recall@2 1.000 (1.000 to 1.000), nDCG 1.000, over raw query +0.500 (0.000 to 1.000)",
    ]


@pytest.mark.parametrize(
    ("found", "options", "way_out"),
    [
        (["a b", "c"], Options(), "try --k 2 or harder questions"),
        (["x a b", "x c"], Options(), "try --k 2 or --reward ndcg or harder questions"),
        (["a b", "x"], Options(), None),
        (["a b", "c"], Options(reward="mine:Own"), None),
    ],
)
def test_where_raw_queries_earn_it_all_nothing_is_to_be_learnt(found, options, way_out, capsys):
    """Said before training, and again at its end."""
    rows = [Row(text, row.relevant_doc_ids, (1,)) for text, row in zip(found, ROWS, strict=True)]
    [raw] = Evaluation(options, rows, search, None).raw()
    said = capsys.readouterr().out.splitlines()
    assert hopeless(raw, options) == said
    assert bool(said) == bool(way_out)
    for line in said:
        assert line.startswith(f"nothing to learn: the raw queries already earn 1.000 of --reward {options.reward} on ")
        assert line.endswith(f"so no rewrite can find more; {way_out}")
