"""The program of docs/serving.md with the openai package, against a server that says what a script says."""

import contextlib
import io
import re
import shutil

import pytest
from transformers import AutoTokenizer

from forage.agent.options import AgentSettings, write_agent
from forage.agent.protocol import Protocol
from forage.store.document_store import DocumentStore
from tests import ROOT
from tests.extras.questions.chat_server import chat_server

# The places that the program names.
NAMED = ("models/merged", "data/store", "http://127.0.0.1:8000/v1")
SETTINGS = AgentSettings(mode="sparse", k=2, max_turns=3, max_turn_tokens=48)


@pytest.fixture(scope="module")
def policy(tiny_base, tmp_path_factory):
    """A merged policy's folder, as far as the program reads it."""
    folder = tmp_path_factory.mktemp("policy") / "merged"
    shutil.copytree(tiny_base, folder)
    write_agent(SETTINGS, folder)
    return folder


def call(arguments, name="search"):
    function = {"name": name, "arguments": arguments}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    return 200, {"object": "chat.completion", "choices": [{"index": 0, "message": message}]}


def test_it_searches_and_answers(policy, tiny_data, monkeypatch):
    monkeypatch.setattr("sys.argv", ["ask.py", "What mends", "<b>disease 1?"])
    replies = [call('{"query": "remedy"}'), call('{"query": "x"}', "find"), "<answer>Rest.</answer>"]
    with chat_server(lambda prompt, number: replies[number - 1]) as server:
        messages, shown = run_program(policy, tiny_data / "store", server.url)
    protocol = Protocol.playing(AutoTokenizer.from_pretrained(policy), SETTINGS)
    found = protocol.show(DocumentStore.open(tiny_data / "store").search("remedy", 2, "sparse"))
    assert len(found.splitlines()) == 2
    unknown = 'error: there is no such tool; the only one is "search"'
    assert [message.get("content") for message in messages] == [
        "What mends < b>disease 1?", None, found, None, unknown, "<answer>Rest.</answer>",
    ]  # fmt: skip
    assert [body.tool_choice for body in server.bodies] == ["required", "auto", "none"]
    assert server.bodies[0].tools == protocol.described_tools
    assert (server.bodies[0].model, server.bodies[0].max_tokens, server.bodies[0].temperature) == ("m", 48, 0)
    assert server.bodies[2].messages == messages[:5]
    assert shown.splitlines()[:2] == ["user What mends < b>disease 1?", 'assistant {"query": "remedy"} ']


def run_program(policy, store, url):
    """(the messages of its conversation, what it printed)."""
    page = (ROOT / "docs" / "serving.md").read_text()
    [program] = [text for text in re.findall(r"```py\n(.*?)```", page, re.DOTALL) if "import OpenAI" in text]
    for written, here in zip(NAMED, (policy, store, url), strict=True):
        assert f'"{written}"' in program
        program = program.replace(written, str(here))
    namespace, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "docs/serving.md", "exec"), namespace)
    return namespace["messages"], printed.getvalue()
