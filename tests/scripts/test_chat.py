"""chat.py: the same loop as evaluation's, from a question to the last line of the answer."""

import json
import os
import shutil
import subprocess
import sys

from tests import ROOT

TINY = ["--engine", "local", "--mode", "sparse", "--max-turns", "2", "--max-turn-tokens", "16"]


def test_a_policy_answers_every_line_of_standard_input(tiny, tmp_path):
    """The newest adapter of a warm start's folder, with the data it learnt from, in a process without a terminal."""
    shutil.copytree(tiny / "policy", tmp_path / "policy")
    shutil.copytree(tmp_path / "policy/adapters/v000000", tmp_path / "policy/adapters/v000007")
    (tmp_path / "policy" / "config.json").write_text(json.dumps({"options": {"data": str(tiny / "data")}}))
    done = subprocess.run(
        [sys.executable, "chat.py", "--policy", tmp_path / "policy", *TINY],
        cwd=ROOT, input="/why\nWhat mends 3?\n\nAgain?\n", capture_output=True, text=True, timeout=240,
        env=os.environ | {"COLUMNS": "80"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["> /why", "nothing was asked yet", "> What mends 3?"]
    assert "> Again?" in lines
    assert sum(line.startswith("no answer: ") for line in lines) == 2  # its weights are random
    assert max(map(len, lines)) <= 80
    assert not [letter for letter in "".join(lines) if ord(letter) < 32]
