"""Rounds, and the draw by spread."""

from collections import Counter

from forage.schedule import by_spread, in_rounds


def test_a_round_has_each_item_once_in_an_order_of_its_own():
    steps = [in_rounds("abcde", step, 3, seed=1) for step in range(5)]
    played = [item for step in steps for item in step]
    assert [sorted(played[first : first + 5]) for first in (0, 5, 10)] == [list("abcde")] * 3
    assert played[:5] != played[5:10]
    assert steps == [in_rounds("abcde", step, 3, seed=1) for step in range(5)]
    assert steps != [in_rounds("abcde", step, 3, seed=2) for step in range(5)]


def test_questions_are_drawn_as_their_rewards_are_spread():
    spreads = {"flat": 0.0, "half": 0.25, "wide": 0.5}
    ids = ["flat", "half", "wide", "new"]
    drawn = Counter(by_spread(ids, spreads, 1, f"{n}")[0] for n in range(8000))
    # Weights .1, .5, 1 and 1 of 2.6.
    for name, share in (("flat", 0.1 / 2.6), ("half", 0.5 / 2.6), ("wide", 1 / 2.6), ("new", 1 / 2.6)):
        assert abs(drawn[name] / 8000 - share) < 0.02, name


def test_nothing_twice_nothing_barred_and_the_same_for_a_seed():
    ids = [f"q{n}" for n in range(10)]
    first = by_spread(ids, {}, 6, "s", without=["q3", "q4"])
    assert first == by_spread(ids, {}, 6, "s", without=["q3", "q4"])
    assert len(set(first)) == 6
    assert not {"q3", "q4"} & set(first)
    assert by_spread(ids, {}, 20, "s") != ids
    assert sorted(by_spread(ids, {}, 20, "s")) == ids  # all there are
    assert by_spread(ids, dict.fromkeys(ids, 0.0), 2, "s")  # all flat: still some
