"""Agents of a user's own, and an engine for them that spells."""

import asyncio

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings
from forage.agent.protocol import NO_ACTION_TEXT, read_turn, tool_responses
from forage.engines.base import Engine, Sample
from forage.extras.gateway.own_agent import recorded
from tests.scripted_engine import QUESTION, search_many

LIMITS = AgentSettings()


class Spelling(Engine):
    """Says what it is told, token by character, as no tokenizer would: whatever is tokenised again differs."""

    adapter = "v000001"

    def __init__(self, protocol, *says, seconds=0.0):
        self.protocol, self.says, self.seconds, self.requests, self.released = protocol, list(says), seconds, [], []

    async def generate(self, request):
        self.requests.append(request)
        said = self.says.pop(0)
        await asyncio.sleep(self.seconds)
        if isinstance(said, Exception):
            raise said
        ids = (*(token for letter in said for token in self.protocol.encode(letter)), self.protocol.end_of_turn)
        return Sample(ids, tuple(-0.5 - n for n in range(len(ids))), "stop")

    def release(self, episode):
        self.released.append(episode)


def agent_over(engine, limits=LIMITS):
    """The agent whose policy this engine speaks for."""
    return Agent(engine, engine.protocol, BatchedSearch(search_many, in_line=True), limits)


def played(agent, protocol, *says, seconds=30.0, limits=LIMITS, pause=0.0, samples=1):
    """(episodes, engine) of an agent."""

    async def go():
        engine = Spelling(protocol, *says, seconds=pause)
        policy = agent_over(engine, limits)
        player = recorded(agent, seconds)
        return await asyncio.gather(*(player(policy, QUESTION, n, 7) for n in range(samples))), engine

    episodes, engine = asyncio.run(go())
    return (*episodes, engine)


async def ask(client, *told, **more):
    """The policy's next message. Each text that it is told is a user's."""
    messages = [{"role": "user", "content": each} if isinstance(each, str) else each for each in told]
    return (await client.chat.completions.create(model="policy", messages=messages, **more)).choices[0].message


async def as_our_loop(question, client, tools):
    """Our own loop, written by a user of the chat API."""
    protocol, settings = tools.recorder.protocol, tools.recorder.agent.settings
    messages, acted = protocol.opening(question), True
    told = {"tools": tools.definitions} if protocol.describes_tools else {}  # else the opening tells them
    for turn in range(settings.max_turns):
        reply = await client.chat.completions.create(model="policy", messages=messages, **told)
        message = reply.choices[0].message
        reading = read_turn(message.content or "")
        last = reply.choices[0].finish_reason == "length" or turn + 1 == settings.max_turns
        called = message.tool_calls or reading.calls
        if last or reading.answer is not None or not (called or acted):
            return reading.answer
        acted = called
        messages.append(message)
        if message.tool_calls:
            found = [await tools.call(call.function.name, call.function.arguments) for call in message.tool_calls]
            messages += [{"role": "tool", "tool_call_id": "any", "content": each} for each in found]
        else:
            faults = [f"error: {call.explanation}" if call.fault else "" for call in called]
            found = [fault or await tools.search(call.query) for fault, call in zip(faults, called, strict=True)]
            messages.append({"role": "user", "content": tool_responses(found or [f"error: {NO_ACTION_TEXT}"])})
    return None
