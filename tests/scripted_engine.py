"""An engine that says what a script makes of each request, and what strategies need around it."""

import asyncio
from dataclasses import dataclass

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol, write_answer, write_call
from forage.agent.tools import specs_of
from forage.data.records import Question
from forage.engines.base import Engine, Sample

QUESTION = Question(
    "q1", "What mends gout?", "GOLD rest", "treatment", "gout", relevant_doc_ids=("d",), relevant_chunk_ids=("right#0",)
)


@dataclass(frozen=True)
class Hit:
    chunk_id: str
    title: str
    text: str


class Scripted(Engine):
    """`say(name, turn, text)` is what to say to an episode's turn, given all before it as text.

    It gives a text, a text and the log-probability of its tokens, or an error to raise. Requests are answered in the
    reverse order of their coming where they wait together, so that no strategy can lean on that order.
    """

    adapter = "v000001"

    def __init__(self, protocol, say):
        self.protocol, self.say, self.requests, self.released = protocol, say, [], []
        self.waiting, self.most_at_once, self.given = [], 0, 0

    async def generate(self, request):
        self.requests.append(request)
        turn = asyncio.Event()
        self.waiting.append(turn)
        for _ in range(20):
            await asyncio.sleep(0)
        self.most_at_once = max(self.most_at_once, len(self.waiting))
        if self.waiting[-1] is not turn:
            await turn.wait()
        self.waiting.remove(turn)
        if self.waiting:
            self.waiting[-1].set()
        return self.sample(request)

    def sample(self, request):
        text = self.protocol.tokenizer.decode(request.ids)
        said = self.say(request.episode.partition("/")[2], text.count("<|im_start|>assistant") - 1, text)
        if isinstance(said, Exception):
            raise said
        words, logprob = said if isinstance(said, tuple) else (said, -0.5)
        ids = self.protocol.turn_ids(words)
        kept = ids[: request.max_tokens]
        self.given += len(kept)
        return Sample(tuple(kept), (logprob,) * len(kept), "stop" if len(kept) == len(ids) else "length")

    def release(self, episode):
        self.released.append(episode)


def library(passages):
    """A search over passages by query: each query finds the chunks that are given for it, by id."""

    def search_many(queries):
        return [[Hit(chunk, "T", text) for chunk, text in passages.get(query, {}).items()] for query in queries]

    return search_many


def turns(by_episode):
    """A script: of each sample's number, its query (None: no search), its answer and by choice its log-probability."""

    def say(name, turn, text):
        query, answer, *logprob = by_episode[name]
        said = write_call(query) if turn == 0 and query is not None else write_answer(answer)
        return (said, *logprob) if logprob else said

    return say


def run(strategy, protocol, say, passages=None, question=QUESTION, seed=0, limits=None):
    """(outcome, engine) of a strategy."""

    async def go():
        engine = Scripted(protocol, say)
        agent = Agent(engine, protocol, BatchedSearch(library(passages or {}), in_line=True), limits or AgentSettings())
        return await strategy(agent, question, seed), engine

    return asyncio.run(go())


def check_books(outcome, engine, asides=0):
    """Every token that an engine gave is counted once, and everything that was opened is released."""
    assert outcome.sampled_tokens == engine.given
    named = {request.episode for request in engine.requests}
    assert named <= set(engine.released)
    assert len(engine.released) == len(set(engine.released))
    assert any(episode is outcome.episode for episode in outcome.tried)
    assert len({episode.id for episode in outcome.tried}) == len(outcome.tried)
    assert len(named) == len(outcome.tried) + asides


class InOrder:
    """An engine that says its turns in their order, whoever asks: a text, tokens, or how many tokens to babble."""

    adapter = "v000001"

    def __init__(self, protocol, *turns):
        self.protocol, self.turns, self.requests, self.released = protocol, list(turns), [], []

    async def generate(self, request):
        self.requests.append(request)
        turn = self.turns[len(self.requests) - 1]
        if isinstance(turn, Exception):
            raise turn
        babbles = isinstance(turn, int)
        ids = [50] * turn if babbles else turn if isinstance(turn, list) else self.protocol.turn_ids(turn)
        kept = ids[: request.max_tokens]
        return Sample(tuple(kept), (-0.5,) * len(kept), "length" if babbles or len(kept) < len(ids) else "stop")

    def release(self, episode):
        self.released.append(episode)


def play_with_tools(protocol, tools, *said, search=None, in_line=True, **limits):
    """(episode, engine, protocol) of an agent with these tools, whose policy says these turns."""
    settings = AgentSettings(**{"max_turns": 5, "tools": specs_of(tools)} | limits)
    protocol = Protocol.playing(protocol.tokenizer, settings)
    engine = InOrder(protocol, *said)
    agent = Agent(engine, protocol, BatchedSearch(search or search_many, in_line=in_line), settings, tools=tools)
    return asyncio.run(agent.play(QUESTION)), engine, protocol


def search_many(queries):
    """Two hits for every query but "nothing"."""
    return [
        [Hit(f"{query}#{number}", "Gout", "Crystals in a joint.") for number in range(2)] if query != "nothing" else []
        for query in queries
    ]


def check_tokens(episode, engine, protocol):
    """What every episode must keep to."""
    assert len(episode.ids) == len(episode.mask) == len(episode.logprobs)
    inside = {place for turn in episode.turns for place in range(turn.start, turn.end)}
    assert [place for place, one in enumerate(episode.mask) if one] == sorted(inside)
    assert all(logprob == 0 for logprob, one in zip(episode.logprobs, episode.mask, strict=True) if not one)
    prompts = [request.ids for request in engine.requests]
    for number, (turn, prompt) in enumerate(zip(episode.turns, prompts, strict=False)):
        assert prompt == episode.ids[: turn.start]
        assert number == 0 or prompt[: episode.turns[number - 1].end] == episode.ids[: episode.turns[number - 1].end]
    text = protocol.tokenizer.decode(episode.ids)
    given = "".join(
        protocol.tokenizer.decode([token for token, one in zip(episode.ids, episode.mask, strict=True) if not one])
    )
    assert text.count("<tool_response>\n") == given.count("<tool_response>\n")  # none of them was sampled
