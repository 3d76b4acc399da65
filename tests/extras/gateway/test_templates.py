"""By every family's template, a conversation over the chat API is that of our own loop, token by token."""

import asyncio

import pytest

from bench.rollout import by_openai
from forage.agent.agent import Agent
from forage.agent.protocol import Protocol, write_answer, write_call
from forage.extras.gateway.chat_api import Called, Message
from forage.extras.gateway.own_agent import recorded
from forage.extras.gateway.recording import read_reply
from tests.agent.conftest import family  # noqa: F401  (a fixture)
from tests.agent.real_templates import REAL, real
from tests.extras.gateway.own_agents import Spelling, agent_over, as_our_loop
from tests.scripted_engine import QUESTION

OURS = ["smollm2", "hermes", "llama3", "no_system"]
SAYS = ("Hm.", f"I look. {write_call('gout')}", f"{write_call('ice')}\n{write_call('nothing')}", write_answer("Rest."))


def episode_of(player, protocol, *says):
    async def go():
        engine = Spelling(protocol, *says)
        policy = agent_over(engine)
        return await player(policy, QUESTION, 0, 7)

    return asyncio.run(go())


@pytest.fixture(scope="module")
def protocol_of(family):  # noqa: F811
    return lambda name: Protocol(family(name) if name in OURS else real(name, *REAL[name]))


@pytest.mark.parametrize("name", [*OURS, *REAL])
def test_by_messages_or_by_our_loop_the_tokens_are_the_same(protocol_of, name):
    protocol = protocol_of(name)
    ours = episode_of(Agent.play, protocol, *SAYS)
    theirs = episode_of(recorded(as_our_loop), protocol, *SAYS)
    assert (len(ours.turns), ours.stop, len(ours.searches)) == (4, "answer", 3)
    for field in ("ids", "mask", "logprobs", "answer", "stop", "searches"):
        assert getattr(theirs, field) == getattr(ours, field)


@pytest.mark.parametrize("name", [*OURS, *REAL])
def test_tools_are_told_called_and_answered_in_one_segment(protocol_of, name):
    protocol = protocol_of(name)
    episode = episode_of(recorded(by_openai), protocol, *SAYS[1:3], "Rest.")
    assert [search.query for search in episode.searches] == ["gout", "ice", "nothing"]
    assert (episode.answer, episode.earlier, len(episode.turns)) == ("Rest.", (), 3)
    told = protocol.tokenizer.decode(episode.ids[: episode.turns[0].start])
    assert "Finds passages of a library." in told
    results = protocol.tokenizer.decode(episode.ids[episode.turns[1].end : episode.turns[2].start])
    assert results.count("<tool_response>") == 2
    assert "nothing found" in results


READ = {
    "a text": ("Rest.", True, Message("assistant", "Rest.")),
    "a call": (write_call("gout"), True, Message("assistant", "", (Called("search", '{"query": "gout"}'),))),
    "two, in one form": (
        'So: <tool_call>{"arguments": {"b": 1, "a": "é"}, "name": "f"}</tool_call><tool_call>{"name": "g"}</tool_call>',
        True, Message("assistant", "So:", (Called("f", '{"a": "é", "b": 1}'), Called("g", "{}"))),
    ),
    "no tool was offered": (write_call("gout"), False, Message("assistant", write_call("gout"))),
    "not JSON": ("<tool_call>{gout}</tool_call>", True, Message("assistant", "<tool_call>{gout}</tool_call>")),
    "not closed": (f"{write_call('a')}<tool_call>", True, Message("assistant", f"{write_call('a')}<tool_call>")),
    "no object": ('<tool_call>["f"]</tool_call>', True, Message("assistant", '<tool_call>["f"]</tool_call>')),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_what_a_reply_is_read_as(case):
    text, tools, message = READ[case]
    assert read_reply(text, tools=tools) == message
