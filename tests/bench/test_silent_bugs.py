"""The bugs can still be put into the code, and one of them is noticed as the table says."""

import pytest

from bench.silent_bugs import BUGS, KEPT, ROOT, edited, look, prepare
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bug_is_put_in_and_noticed(tmp_path):
    prepare(tmp_path)
    stops, _, test = look(BUGS[0], tmp_path, [])
    assert stops == "trainer's engine served the base as v000000"
    assert test.startswith("tests/engines/test_local.py::")
