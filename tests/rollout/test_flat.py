"""Flat groups by hand."""

from forage.rollout.plans import is_flat


def test_equal_up_to_rounding_is_flat():
    assert is_flat([0.5, 0.5 + 1e-9, 0.5])
    assert is_flat([0.5])
    assert not is_flat([0.5, 0.5, 0.51])
