"""Whether the trainer waits, by hand."""

from dataclasses import replace

from forage.runs.waiting import advice
from tests.factories import STATS

STARTING = replace(STATS, step=0, seconds={"rollout": 99.0, "rollout_wait": 99.0}, workers={"a": 8})


def step(number, waited):
    """A step of ten seconds, of which six are the update's and four the rollout's."""
    seconds = {"rollout": 4.0, "backward": 6.0, "generate": 3.0} | ({"rollout_wait": waited} if waited else {})
    return replace(STATS, step=number, seconds=seconds, workers={"a": 8}, servers={}, notes=[])


def test_what_is_advised():
    says = "the trainer waits 50 % of the time for episodes: add a rollout worker, or raise --max-staleness"
    assert advice([STARTING, step(1, 6), step(2, 4)]) == says
    assert advice([STARTING, step(1, 3), step(2, 0.9)]) == ""  # 19.5 %
    assert advice([STARTING, step(1, 0)]) == advice([STARTING]) == advice([]) == ""


def test_only_the_last_steps_count_and_never_the_first():
    now = [step(number, 1) for number in range(31, 51)]
    assert advice([STARTING, *(step(number, 8) for number in range(1, 31)), *now]) == ""


def test_where_no_worker_plays_nothing_is_said():
    assert advice([replace(each, workers={}) for each in (STARTING, step(1, 6))]) == ""
