"""Plots: what is drawn, by values worked by hand; and any run's statistics can be drawn."""

from dataclasses import replace

import numpy as np
import pytest

from forage.runs.plots import (
    distribution_figure,
    level_shares,
    phase_seconds,
    reach_of,
    running_mean,
)
from tests.factories import STATS


def test_running_mean_by_hand():
    assert running_mean([1, 3, 8, 6], 1) == [2, 4, 17 / 3, 7]
    assert running_mean([1, 3], 0) == [1, 3]
    assert [reach_of(steps) for steps in (1, 5, 6, 100, 10_000)] == [0, 0, 1, 5, 20]


def test_seconds_by_phase():
    stats = [
        replace(STATS, seconds={"rollout": 20.0, "generate": 15.0, "backward": 8.0, "step": 31.0}),
        replace(STATS, seconds={"rollout": 10.0, "mine": 1.0, "step": 11.0}),
    ]
    assert phase_seconds(stats) == {"rollout": [20, 10], "backward": [8, 0], "mine": [0, 1]}
    assert list(phase_seconds(stats)) == ["rollout", "backward", "mine"]


def test_the_distribution_of_each_reward_has_a_column_a_step():
    assert level_shares([0, 0.6, 1], np.array([0, 0.5, 1])).tolist() == pytest.approx([1 / 3, 2 / 3])
    stats = [replace(STATS, step=n, rewards={"mrr": [0.0, n, None], "low": [-1.0]}) for n in range(2)]
    mrr, low = distribution_figure(stats).axes[:2]
    shares_LC = np.array(mrr.collections[0].get_array())
    assert shares_LC[0].tolist() == [1, 0.5]  # of those that have it: all earn 0, then half
    assert shares_LC[-1].tolist() == [0, 0.5]
    assert mrr.lines[0].get_ydata().tolist() == [0, 0.5]
    assert low.get_ylim()[0] == -1
