"""Stopwatches by name, by hand."""

import pytest

from forage.runs.stats import Phases
from tests.factories import Clock


def test_phases_by_hand():
    clock = Clock()
    phases = Phases(clock)
    with phases("rollout"):
        clock.seconds = 2
        with phases("search"):
            clock.seconds = 5
        clock.seconds = 10
    with phases("search"):
        clock.seconds = 11
    clock.seconds = 20
    assert phases.take() == {"rollout": 10, "search": 4}
    assert phases.take() == {}


def test_a_name_that_runs_twice_at_once_counts_once():
    clock = Clock()
    phases = Phases(clock)
    outer, inner = phases("search"), phases("search")
    outer.__enter__()
    clock.seconds = 2
    inner.__enter__()
    clock.seconds = 5
    outer.__exit__(None, None, None)  # not in the order of their beginning, as asyncio's tasks end
    clock.seconds = 7
    inner.__exit__(None, None, None)
    assert phases.take() == {"search": 7}


def test_a_phase_has_the_work_that_it_left_to_the_gpu():
    """A stand-in whose queued work takes its time only when it is waited for, as on a GPU."""
    clock, queued, waits = Clock(), [], []

    def synchronize():
        waits.append(clock.seconds)
        clock.seconds += sum(queued)
        queued.clear()

    phases = Phases(clock, synchronize)
    with phases("update"):
        queued.append(7)
        with phases("backward"):
            clock.seconds += 1
            queued.append(20)
    with phases("checkpoint"):
        clock.seconds += 2
    assert waits == [1, 28, 30]
    assert phases.take() == {"backward": 28, "update": 28, "checkpoint": 2}
    queued.append(5)
    with pytest.raises(KeyError), phases("update"):
        raise KeyError  # a GPU that failed can't be waited for
    assert len(waits) == 3


def test_what_still_runs_is_taken_up_to_now_and_an_error_stops_the_watch():
    clock = Clock()
    phases = Phases(clock)

    def breaks():
        with phases("step"):
            clock.seconds = 4
            assert phases.take() == {"step": 4}
            clock.seconds = 6
            raise KeyError

    with pytest.raises(KeyError):
        breaks()
    assert phases.take() == {"step": 2}
