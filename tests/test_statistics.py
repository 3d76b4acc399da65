"""Intervals: of no width, of a known width, and the same each time."""

import numpy as np
import pytest

from forage.statistics import bootstrapped


def test_equal_values_are_certain():
    assert bootstrapped([0.5] * 9) == {"mean": 0.5, "low": 0.5, "high": 0.5}


def test_the_width_is_that_of_the_normal_distribution_where_there_are_many():
    values = np.random.default_rng(1).normal(2, 1, 1000)
    interval = bootstrapped(values)
    wanted = 1.96 * values.std() / 1000**0.5
    assert interval["mean"] - interval["low"] == pytest.approx(wanted, rel=0.1)
    assert interval["high"] - interval["mean"] == pytest.approx(wanted, rel=0.1)
    assert bootstrapped(values) == interval
