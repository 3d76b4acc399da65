"""chat.py: the same loop as evaluation's, from a question to the last line of the answer."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import httpx

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


def test_a_policy_answers_in_a_browser_until_it_is_stopped(tiny):
    command = [sys.executable, "chat.py", "--policy", tiny / "policy", "--data", tiny / "data", "--web", "0", *TINY]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        url = re.search(r"http://\S+(?=,)", server.stdout.readline())[0]
        reply = httpx.post(f"{url}/ask", json={"question": "What mends 3?"}, timeout=120)
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 128 + signal.SIGINT
        assert server.stderr.read().splitlines()[-1] == "stopped"
    events = [json.loads(line) for line in reply.text.splitlines()]
    assert len([event for event in events if event.get("turn") == 0]) > 1  # as it writes them
    assert list(events[-1]) == ["no_answer"]  # its weights are random
