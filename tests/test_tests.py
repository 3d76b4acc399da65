"""The tests' own house rules."""

import re

import pytest

from tests import ROOT
from tests.conftest import NUMBERS

MODULES = sorted((ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_test_module_imports_another(path):
    """What several need is in factories.py, tiny.py, scripted_engine.py and their like."""
    assert not re.findall(r"^\s*(?:from|import) tests\S*\.test_\w+", path.read_text(), re.MULTILINE)


def test_every_module_of_numbers_is_there():
    assert {path.stem for path in MODULES} >= NUMBERS
