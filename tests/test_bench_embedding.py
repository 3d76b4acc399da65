"""The embedding benchmark: a ranking by hand, and all its ways for real on a few passages."""

import numpy as np
import pytest

from bench.embedding import BenchOptions, main, mean_reciprocal_rank, question_and_answer
from forage.errors import UserError


def test_mrr_by_hand():
    """The first query finds its passage first; the second prefers the first and the third passage to its own."""
    passages_ND = np.eye(3, dtype=np.float32)
    queries_ND = np.array([[1, 0, 0], [0.7, 0.1, 0.7], [0, 0, 1]], np.float32)
    assert mean_reciprocal_rank(queries_ND, passages_ND) == pytest.approx((1 + 1 / 3 + 1) / 3)


def test_every_way_is_measured(capsys):
    with pytest.raises(SystemExit):
        main(BenchOptions(passages=12, repeats=1))
    printed = capsys.readouterr().out
    for way in ("fp32", "bf16", "int8", "in order"):
        assert f"| {way} |" in printed
    assert "int8 / " in printed.splitlines()[-1]


def test_pairs_are_drawn_alike_each_time(tmp_path):
    assert question_and_answer(BenchOptions(passages=5)) == question_and_answer(BenchOptions(passages=9))[:5]
    (tmp_path / "a.jsonl").write_text('{"question": "Why?", "answer": ""}\n')
    with pytest.raises(UserError, match="has no question with an answer"):
        question_and_answer(BenchOptions(str(tmp_path / "a.jsonl")))
