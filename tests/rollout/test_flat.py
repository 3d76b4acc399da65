"""Flat groups by hand."""

from dataclasses import replace

from forage.rollout.plans import is_flat
from tests.factories import EPISODE


def group(*rewards):
    return [replace(EPISODE, reward=reward) for reward in rewards]


def test_equal_up_to_rounding_is_flat():
    assert is_flat(group(0.5, 0.5 + 1e-9, 0.5))
    assert is_flat(group(0.5))
    assert not is_flat(group(0.5, 0.5, 0.51))
