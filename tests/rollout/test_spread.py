"""Spreads by hand, for each way to combine rewards."""

from dataclasses import replace

import pytest

from forage.rollout.spread import is_flat, spread
from tests.factories import EPISODE


def group(*rows):
    """Episodes with rewards a and b; their mean counts as the reward."""
    return [replace(EPISODE, rewards={"a": a, "b": b}, reward=(a + b) / 2) for a, b in rows]


AGAINST = group((0.0, 1.0), (1.0, 0.0))
VARYING = group((0.0, 0.5), (0.8, 0.5))


@pytest.mark.parametrize(
    ("combine", "weights", "against", "varying"),
    [
        ("uniform", {}, 0.0, 0.2),  # means .5, .5; and .25, .65
        ("l2", {}, 0.0, (0.89**0.5 - 0.5) / 2 / 2**0.5),  # lengths 1, 1; .5 and sqrt(.89), over sqrt(2)
        ("l2", {"a": 2.0, "b": 1.0}, 0.5 / 5**0.5, None),  # lengths 1 and 2, over sqrt(5)
        ("std", {}, 0.5, (0.16 / 2) ** 0.5),  # variances .25, .25; and .16, 0
        ("pca", {"a": 3.0, "b": 1.0}, 0.5, (0.16 * 3 / 4) ** 0.5),
        ("gdpo", {"a": 1.0, "b": 0.0}, 0.5, 0.4),  # a alone
        ("gdpo", {"a": 0.0, "b": 1.0}, 0.5, 0.0),  # b alone
    ],
)
def test_by_hand(combine, weights, against, varying):
    assert spread(AGAINST, combine, weights) == pytest.approx(against)
    assert is_flat(AGAINST, combine, weights) == (against == 0)
    if varying is not None:
        assert spread(VARYING, combine, weights) == pytest.approx(varying)
        assert is_flat(VARYING, combine, weights) == (varying == 0)


@pytest.mark.parametrize("combine", ["uniform", "l2", "std", "pca", "gdpo"])
def test_equal_up_to_rounding_is_flat(combine):
    assert is_flat(group((0.5, 0.5), (0.5 + 1e-9, 0.5)), combine)
    assert not is_flat(group((0.5, 0.5), (0.51, 0.5)), combine)


@pytest.mark.parametrize("combine", ["l2", "std", "pca", "gdpo"])
def test_a_reward_that_does_not_exist_for_the_question_is_left_out(combine):
    """Weights go by name: with b gone, c keeps its own."""
    without_b = [replace(EPISODE, rewards={"a": 0.5, "c": c}, reward=0.0) for c in (0.0, 1.0)]
    weights = {"a": 1.0, "b": 1.0, "c": 0.0}
    assert is_flat(without_b, combine, weights)
    assert not is_flat(without_b, combine, weights | {"c": 1.0})
