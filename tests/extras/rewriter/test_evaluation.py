"""Evaluation: measures and differences by hand, and the table."""

import math

import pytest

from forage.extras.rewriter.data import Row
from forage.extras.rewriter.options import Options
from forage.extras.rewriter.training import (
    RAW,
    Evaluation,
    gains,
    hopeless,
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
