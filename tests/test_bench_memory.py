"""The memory of an update is predicted within 15 %: a small real one, measured in a process of its own."""

import pytest

from bench.memory import CASES, TOLERANCE, compare, peak_of, run_alone


@pytest.mark.slow
@pytest.mark.parametrize("name", ["10M bf16, 1 x 512", "10M nf4, checkpointed, 1 x 512"])
def test_predicted_and_measured_peaks_agree(name, tmp_path):
    number = [case.name for case in CASES].index(name)
    row = compare(CASES[number], run_alone(number, tmp_path))
    assert row.whole == pytest.approx(1, abs=TOLERANCE)
    assert row.update == pytest.approx(1, abs=TOLERANCE)


def test_the_peak_of_a_trace():
    """Allocations and frees in the order of time, whatever order they are listed in."""

    class Event:
        def __init__(self, at, size, name="[memory]"):
            self.start_ns, self.nbytes, self.name = (lambda: at), (lambda: size), (lambda: name)

    class Profile:
        profiler = None

    Profile.profiler = Profile
    Profile.kineto_results = Profile
    Profile.events = staticmethod(
        lambda: [Event(3, -40), Event(1, 100), Event(2, 40), Event(4, 30), Event(2, 9, "add")]
    )
    assert peak_of(Profile) == 140
