"""Bad inputs to each script: one line, a status that is not 0, nothing written; and docs/errors.md shows them."""

import os

import pytest

from tests import ROOT
from tests.bad_inputs import CASES, HEAD, command, make_work, said, shown

PAGE = (ROOT / "docs" / "errors.md").read_text()


@pytest.fixture(scope="module")
def work(tmp_path_factory, model_folder):
    """Where the packaged model has been converted: two scripts that do so at once would get in each other's way."""
    return make_work(tmp_path_factory.mktemp("bad_inputs"))


def state(folder):
    """Every file below a folder with its time and size."""
    found = {}
    for place, _, files in os.walk(folder):
        found[place] = None
        for name in files:
            path = os.path.join(place, name)
            found[path] = (os.lstat(path).st_mtime_ns, os.lstat(path).st_size)
    return found


@pytest.mark.parametrize(("script", "arguments"), [(s, a) for s, inputs in CASES.items() for a in inputs])
def test_a_mistake_is_one_line_and_changes_nothing(script, arguments, work):
    before = state(work)
    status, lines, out = said(script, arguments, work)
    assert status == 1
    [line] = lines
    assert line.startswith("error: ")
    assert "Traceback" not in out
    assert state(work) == before
    assert shown(command(script, arguments), line) in PAGE


def test_the_page_shows_each_and_no_others():
    scripts = {path.name for path in ROOT.glob("*.py")}
    assert CASES.keys() == scripts - {"nano_grpo.py"}
    assert PAGE.startswith(HEAD)
    assert PAGE.count("\n| `") == sum(map(len, CASES.values()))
