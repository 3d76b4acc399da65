"""How cost grows: exponents by hand, the table, and each point for real on small sizes."""

import pytest

from bench import growth
from bench.growth import Options, exponent, main, table
from forage.errors import UserError


@pytest.mark.parametrize(
    ("sizes", "costs", "slope"), [([1, 10], [3, 300], 2), ([1, 10, 100], [5, 5, 5], 0), ([2, 4, 8], [8, 4, 2], -1)]
)
def test_exponents_by_hand(sizes, costs, slope):
    assert exponent(sizes, costs) == pytest.approx(slope)


def test_the_table_has_a_line_for_each_size():
    assert table("chunks", {1000: {"s": 1.0, "MiB": 20.0}, 10_000: {"s": 10.0, "MiB": 20.0}}) == [
        "| chunks | s | MiB |", "|---|---|---|", "| 1,000 | 1 | 20 |", "| 10,000 | 10 | 20 |",
        "| exponent | 1.00 | 0.00 |",
    ]  # fmt: skip


def test_each_kind_of_point_is_measured_and_drawn(tiny, tmp_path, monkeypatch, capsys):
    """In this process, where each would have its own."""
    monkeypatch.setattr(growth, "alone", lambda point, *arguments: point(*arguments))
    picture = tmp_path / "growth.png"
    main(Options(tiny / "policy", (20, 200), (16, 64), (1, 3), (1, 3), picture))
    assert capsys.readouterr().out.count("| exponent |") == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="--tokens 4: give two sizes or more, each at least 1"):
        Options(tokens=(4,)).check()


def test_a_group_shares_its_first_tokens_alone():
    one, other = growth.drawn(2, shared=3, own=4, sampled=2)
    assert one.ids[:3] == other.ids[:3]
    assert one.ids[3:] != other.ids[3:]
    assert one.mask == (0, 0, 0, 0, 0, 1, 1)
