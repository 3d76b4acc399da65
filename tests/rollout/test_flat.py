"""Flat groups by hand, for each way to combine rewards."""

from dataclasses import replace

import pytest

from forage.rollout.plans import is_flat
from tests.factories import EPISODE


def group(*rows):
    """Episodes with rewards a and b; their mean counts as the reward."""
    return [replace(EPISODE, rewards={"a": a, "b": b}, reward=(a + b) / 2) for a, b in rows]


AGAINST = group((0.0, 1.0), (1.0, 0.0))
VARYING = group((0.0, 0.5), (0.8, 0.5))


@pytest.mark.parametrize(
    ("combine", "weights", "against", "varying"),
    [
        ("uniform", {}, True, False),  # means .5, .5; and .25, .65
        ("l2", {}, True, False),  # lengths 1, 1; .5 and sqrt(.89)
        ("l2", {"a": 2.0, "b": 1.0}, False, False),  # lengths 1 and 2
        ("std", {}, False, False),  # variances .25, .25; and .16, 0
        ("pca", {"a": 3.0, "b": 1.0}, False, False),
        ("gdpo", {"a": 1.0, "b": 0.0}, False, False),  # a alone
        ("gdpo", {"a": 0.0, "b": 1.0}, False, True),  # b alone
    ],
)
def test_by_hand(combine, weights, against, varying):
    assert is_flat(AGAINST, combine, weights) == against
    assert is_flat(VARYING, combine, weights) == varying


@pytest.mark.parametrize("combine", ["uniform", "l2", "std", "pca", "gdpo"])
def test_equal_up_to_rounding_is_flat(combine):
    assert is_flat(group((0.5, 0.5), (0.5 + 1e-9, 0.5)), combine, {})
    assert not is_flat(group((0.5, 0.5), (0.51, 0.5)), combine, {})


@pytest.mark.parametrize("combine", ["l2", "std", "pca", "gdpo"])
def test_a_reward_that_does_not_exist_for_the_question_is_left_out(combine):
    """Weights go by name: with b gone, c keeps its own."""
    without_b = [replace(EPISODE, rewards={"a": 0.5, "c": c}, reward=0.0) for c in (0.0, 1.0)]
    weights = {"a": 1.0, "b": 1.0, "c": 0.0}
    assert is_flat(without_b, combine, weights)
    assert not is_flat(without_b, combine, weights | {"c": 1.0})
