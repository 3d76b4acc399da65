"""chat.py: the same loop as evaluation's, from a question on the command line to the last line of the answer."""

import io
import json
import os
import re
import shutil
import subprocess
import sys

from tests import ROOT
from tests.extras.questions.chat_server import chat_server
from tests.here import run_here

TINY = ["--engine", "local", "--mode", "sparse", "--max-turns", "2", "--max-turn-tokens", "16"]


def chat(*arguments, said=None, **more):
    """A real process. `said` goes to its standard input, which is no terminal."""
    command = [sys.executable, "chat.py", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "80"}
    return subprocess.run(
        command, cwd=ROOT, input=said, capture_output=True, text=True, timeout=240, env=environment, **more
    )


def plain(text):
    """Whether a terminal would do nothing but show it."""
    return not [letter for letter in text if letter != "\n" and ord(letter) < 32]


def tool_reply(query):
    call = {"id": "c", "type": "function", "function": {"name": "search", "arguments": json.dumps({"query": query})}}
    return 200, {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}


def test_an_endpoint_answers_every_line_of_standard_input(tiny_data, model_folder):
    """Two questions, of which the second is asked without the first. Document 3 has remedy 3."""

    def reply(prompt, number):
        return tool_reply("remedy disease 3") if number % 2 else "Disease 3 is mended by [bold]remedy[/bold] 3."

    with chat_server(reply) as server:
        done = chat("--base-url", server.url, "--model", "m", "--data", tiny_data, "--k", 2,
                    said="/why\nWhat mends 3?\n\nAgain?\n/why\n")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert [len(body.messages) for body in server.bodies] == [2, 4, 2, 4]
        assert server.bodies[2].messages[1]["content"] == "Again?"
    assert plain(done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[:2] == ["> /why", "nothing was asked yet"]
    assert "'remedy disease 3' found d3#0 (sparse 1)" in lines
    lines = lines[2:]
    assert lines[:2] == ["> What mends 3?", "search 1: remedy disease 3"]
    assert re.fullmatch(r"1 Disease 3: Disease 3 is mended by rest and by remedy 3\. \d\.\d{3}", lines[2])
    assert lines[4:6] == ["answer", "Disease 3 is mended by [bold]remedy[/bold] 3."]
    assert "> Again?" in lines


def test_a_policy_answers_the_question_on_the_command_line(tiny, tmp_path):
    """The newest adapter of a policy's folder."""
    shutil.copytree(tiny / "policy", tmp_path / "policy")
    shutil.copytree(tmp_path / "policy/adapters/v000000", tmp_path / "policy/adapters/v000007")
    done = chat("--policy", tmp_path / "policy", "--data", tiny / "data", "--question", "What mends disease 3?", *TINY)
    assert done.returncode == 0, done.stderr
    assert "no answer: " in done.stdout  # its weights are random
    assert plain(done.stdout)


def test_a_script_without_a_question_is_told(tiny, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    done = run_here([sys.executable, "chat.py", "--policy", tiny / "policy", "--data", tiny / "data", *TINY])
    assert done.returncode == 1
    assert "no question came on standard input" in done.stderr.splitlines()[-1]
