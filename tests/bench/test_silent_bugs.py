"""The bugs can still be put into the code, and one of them is noticed as the table says."""

import pytest

from bench.silent_bugs import BUGS, KEPT, NOT_IN_TRL, ROOT, edited, look, prepare, unusual
from tests.refusals import refused


@pytest.mark.parametrize("bug", [*BUGS, *KEPT], ids=lambda bug: bug.name)
def test_every_edit_has_its_place(bug):
    for file, old, new in bug.edits:
        compile(edited((ROOT / file).read_text(), old, new), file, "exec")
    assert all((ROOT / path).exists() for path in bug.tests.split())


def test_an_edit_without_a_place_is_refused():
    with refused("'y' stands there 0 times"):
        edited("x", "y", "z")
    with refused("'x' stands there 2 times"):
        edited("xx", "x", "z")


def test_each_is_put_into_trl_or_a_reason_is_given():
    peer = (ROOT / "bench/peers/silent_bugs_trl.py").read_text()
    for bug in (*BUGS, *KEPT):
        assert (f'"{bug.name}": (' in peer) != (bug.name in NOT_IN_TRL), bug.name


def test_unusual_is_further_out_than_the_usual_lie_apart():
    usual = [{"step": 0, "kl": 1.0}, {"step": 1, "kl": 2.0}]
    assert not unusual([{"step": 1, "kl": 3.0, "unknown": 9.0}], usual)
    assert unusual([{"step": 1, "kl": 3.1}], usual) == "kl 3.1 at step 1, in clean runs 1 to 2"
    assert unusual([{"note": "flat", "step": 1, "kl": 1.5}], usual) == "flat"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bug_is_put_in_and_noticed(tmp_path):
    prepare(tmp_path)
    stops, _, test = look(BUGS[0], tmp_path, [])
    assert stops == "trainer's engine served the base as v000000"
    assert test.startswith("tests/engines/test_local.py::")
