"""An engine that says what a script makes of each request, and what strategies need around it."""

import asyncio
from dataclasses import dataclass

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings
from forage.agent.protocol import write_answer, write_call
from forage.data.records import Question
from forage.engines.base import Sample

QUESTION = Question(
    "q1", "What mends gout?", "GOLD rest", "treatment", "gout", relevant_doc_ids=("d",), relevant_chunk_ids=("right#0",)
)


@dataclass(frozen=True)
class Hit:
    chunk_id: str
    title: str
    text: str


class Scripted:
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
    assert outcome.sampled == engine.given
    named = {request.episode for request in engine.requests}
    assert named <= set(engine.released)
    assert len(engine.released) == len(set(engine.released))
    assert any(episode is outcome.episode for episode in outcome.tried)
    assert len({episode.id for episode in outcome.tried}) == len(outcome.tried)
    assert len(named) == len(outcome.tried) + asides
