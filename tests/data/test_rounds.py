"""Rounds over all items."""

from forage.data.splits import in_rounds


def test_a_round_has_each_item_once_in_an_order_of_its_own():
    steps = [in_rounds("abcde", step, 3, seed=1) for step in range(5)]
    played = [item for step in steps for item in step]
    assert [sorted(played[first : first + 5]) for first in (0, 5, 10)] == [list("abcde")] * 3
    assert played[:5] != played[5:10]
    assert steps == [in_rounds("abcde", step, 3, seed=1) for step in range(5)]
    assert steps != [in_rounds("abcde", step, 3, seed=2) for step in range(5)]
