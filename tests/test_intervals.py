"""Intervals: of no width, of a known width, and the same each time."""

import numpy as np
import pytest

from forage.metrics import bootstrapped, clear, span


def test_the_width_is_that_of_the_normal_distribution_where_there_are_many():
    values = np.random.default_rng(1).normal(2, 1, 1000)
    interval = bootstrapped(values)
    wanted = 1.96 * values.std() / 1000**0.5
    assert interval["mean"] - interval["low"] == pytest.approx(wanted, rel=0.1)
    assert interval["high"] - interval["mean"] == pytest.approx(wanted, rel=0.1)
    assert bootstrapped(values) == interval


def test_an_interval_is_clear_without_zero_in_it():
    for low, high, expected in ((0.1, 0.25, True), (-0.1, 0.2, False), (-0.3, -0.1, True), (0, 0.1, False)):
        assert clear({"mean": 0.0, "low": low, "high": high}) is expected
    assert span({"mean": 0.2, "low": 0.1, "high": 0.25}) == "0.100 to 0.250"
