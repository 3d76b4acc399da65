"""Which side waits: shares and advice by hand."""

from dataclasses import replace

import pytest

from forage.runs.waiting import Shares, advice, shares
from tests.factories import STATS

A = {"episodes": 8, "tokens_per_s": 120.0, "backpressure": 0.0, "tail": 0.0}
STARTING = replace(STATS, step=0, seconds={"rollout": 99.0, "rollout_wait": 99.0}, workers={"a": A})


def step(number, trainer, workers=0.0, tail=0.0, count=2, took=10.0):
    """A step of ten seconds, of which six are the update's and four the rollout's."""
    seconds = {"rollout": took - 6, "backward": 6.0, "generate": 3.0, "rollout_wait": trainer}
    names = ("a", "b", "c")[:count]
    seconds |= {"backpressure": workers, "tail": tail}
    return replace(STATS, step=number, seconds=seconds, workers=dict.fromkeys(names, A), servers={}, notes=[])


def test_shares_by_hand():
    assert shares([STARTING, step(1, 6, 4), step(2, 4)]) == Shares(0.5, 0.1, 0.0, 2)
    assert shares([STARTING, step(1, 0, 3, 6, count=1), step(2, 0, 0, 0, count=3)]) == Shares(0, 0.075, 0.15, 3)
    assert shares([STARTING, step(1, 2), step(2, 4, took=20)]) == Shares(0.2, 0.0, 0.0, 2)


def test_a_share_is_never_more_than_the_whole():
    """A worker's wait counts from its own steps, which may reach into the next one of the trainer."""
    assert shares([STARTING, step(1, 0, 11, count=1)]) == Shares(0.0, 1.0, 0.0, 1)


def test_only_the_last_steps_count_and_never_the_first():
    assert shares([]) is None
    assert shares([STARTING]) is None
    then = [step(number, 8) for number in range(1, 31)]
    now = [step(number, 1) for number in range(31, 51)]
    assert shares([STARTING, *then, *now]).trainer == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Shares(0.62, 0.05, 0.0, 1), "the trainer waits 62 % of the time for episodes: add a rollout worker"),
        (
            Shares(0.41, 0.39, 0.0, 2),
            "the trainer waits 41 % of the time for episodes, and workers wait 39 % for the trainer: raise "
            "--max-staleness",
        ),
        (Shares(0.05, 0.48, 0.0, 2), "workers wait 48 % of the time, ahead of the trainer: take a worker away"),
        (
            Shares(0.05, 0.3, 0.0, 2),  # one alone would not do
            "workers wait 30 % of the time, ahead of the trainer: give the trainer more GPUs or cores",
        ),
        (Shares(0.19, 0.19, 0.9, 2), ""),
    ],
)
def test_advice(found, says):
    assert advice(found) == says
