"""Memory of data preparation: its figures by hand, and two sizes for real."""

import json

import pytest

from bench.streaming import BenchOptions, made_up, main, slope, table
from forage.errors import UserError


def test_slopes_by_hand():
    assert slope((1_000, 2_000), {"a": 3}, {"a": 5}, "a") == 2
    assert slope((1_000, 11_000), {"a": 5}, {"a": 5}, "a") == pytest.approx(0, abs=1e-5)


def test_the_table_has_a_line_for_each_stage():
    small = {f"{stage}, MiB": 1.0 for stage in ("documents", "store", "questions", "data set")}
    large = dict.fromkeys(small, 11.0) | {f"{stage}, s": 2.0 for stage in ("documents", "store", "questions")}
    lines = table((1_000, 11_000), small, large)
    assert lines[2] == "| documents | 5,500 | 1.0 | 11.0 | 1.000 |"
    assert len(lines) == 6


def test_rows_are_made_up_the_same_again():
    assert list(made_up(9)) == list(made_up(20))[:9]
    assert [bool(row["url"]) for row in made_up(5)] == [True, False, False, False, True]


def test_a_size_is_prepared(tmp_path, capsys):
    main(BenchOptions(point=60, folder=tmp_path))
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["documents, s"] > 0
    assert (tmp_path / "data" / "eval.jsonl").is_file()


def test_one_size_tells_no_growth():
    with pytest.raises(UserError, match="--rows 9 9: give a small and a large size"):
        BenchOptions(rows=(9, 9)).check()
