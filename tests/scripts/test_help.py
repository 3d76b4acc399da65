"""--help of every script: at once, at most 60 lines, and without a library that takes seconds to import."""

import os
import subprocess
import sys

import pytest

from tests import ROOT

SCRIPTS = sorted(path.name for path in ROOT.glob("*.py"))
HEAVY = ("torch", "transformers", "sentence_transformers", "chromadb", "datasets", "trl", "peft", "matplotlib")
# Runs a script as __main__, and says on stderr what of that list it imported.
CODE = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(*[name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""


def run(script, *arguments):
    command = [sys.executable, "-c", CODE.format(heavy=HEAVY), script, *arguments]
    environment = os.environ | {"COLUMNS": "100"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_short_and_imports_nothing_heavy(script):
    told = run(script, "--help")
    assert told.returncode == 0
    assert told.stderr.split() == []
    lines = told.stdout.splitlines()
    assert 10 <= len(lines) <= 60
    assert max(map(len, lines)) <= 120
