"""Plots: what is drawn, by values worked by hand; and any run's statistics can be drawn."""

from dataclasses import replace

import numpy as np
import pytest

from forage.runs.plots import (
    draw_plots,
    phase_seconds,
    reach_of,
    running_mean,
)
from tests.factories import STATS, run_of

NAN = float("nan")
NAMES = ["rewards.png", "training.png"]


def test_running_mean_by_hand():
    assert running_mean([1, 3, NAN, 8, 6], 1).tolist() == [2, 2, 5.5, 7, 7]
    assert running_mean([1, 3], 0).tolist() == [1, 3]
    assert np.isnan(running_mean([NAN, NAN, NAN, 4], 1)).tolist() == [True, True, False, False]
    assert [reach_of(steps) for steps in (1, 5, 6, 100, 10_000)] == [0, 0, 1, 5, 20]


def test_phases_add_up_to_the_step():
    stats = [
        replace(STATS, seconds={"rollout": 20.0, "generate": 15.0, "backward": 8.0, "step": 31.0}),
        replace(STATS, seconds={"rollout": 10.0, "mine": 1.0, "step": 11.0}),
    ]
    assert phase_seconds(stats) == {
        "rollout": [20, 10], "backward": [8, 0], "mine": [0, 1], "other": [3, 0],
    }  # fmt: skip
    assert list(phase_seconds(stats)) == ["rollout", "backward", "mine", "other"]


AWKWARD = {
    "one step": run_of(1),
    "a reward that came later": [*run_of(8), replace(STATS, step=8, rewards={"overall": [1.0], "new": [0.5]})],
    "many rewards, odd names": [
        replace(STATS, rewards={"overall": [1.0]} | {f"$x_{n}^$ <b>": [0.1] for n in range(6)})
    ],
    "no figures": run_of(2, training={}, seconds={}, stops={}, faults={}),
    "a huge ratio": run_of(12, training={"ratio_min": 1e-4, "ratio_mean": 1.0, "ratio_max": 1e4}),
}  # fmt: skip


def test_a_plot_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    draw_plots(tmp_path, run_of(1), {})
    before = (tmp_path / "rewards.png").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        draw_plots(tmp_path, run_of(2), {})
    assert (tmp_path / "rewards.png").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == NAMES
