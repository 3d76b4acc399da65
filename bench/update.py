"""Time and peak memory of one update, for several ways to pack episodes into micro-batches.

    python -m bench.update --policy runs/demo/warm --episodes runs/demo/run/episodes/000000/trainer.jsonl

Each way runs in its own process, on the same episodes with made-up advantages, after a warm-up update. Tokens/s counts
the episodes' tokens, however many were computed.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bench.processes import output_of
from bench.report import Bar, finish
from forage.agent.episode import Episode, read_episodes
from forage.cli import run_script
from forage.grpo.learner import Learner
from forage.grpo.options import UpdateOptions
from forage.grpo.update import UpdateContext, prepare, update
from forage.optimizer import MemoryOptions
from forage.policy.card import read_policy_card
from forage.policy.policy import load_policy

# name: (budget, prompts shared, activations recomputed)
WAYS = {
    "shared 4096": (4096, True, False),
    "shared 2048": (2048, True, False),
    "shared 1024": (1024, True, False),
    "shared 512": (512, True, False),
    "shared 256": (256, True, False),
    "shared 512, checkpointed": (512, True, True),
    "plain 2048": (2048, False, False),
    "plain 512": (512, False, False),
    "plain 2048, checkpointed": (2048, False, True),
}


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    policy: Path = Path("runs/demo/warm")
    """Policy folder."""
    episodes: Path = Path("runs/demo/run/episodes/000000/trainer.jsonl")
    """File of a step's episodes."""
    questions: int = 2
    """Groups of it."""
    prompt_tokens: int = 0
    """Lengthen each prompt to this many tokens, by repeating its own; 0: leave them."""
    way: str = ""
    """Measure this way alone, and print its figures as JSON."""


def main(bench: BenchOptions) -> None:
    if bench.way:
        print(json.dumps(measure(bench)))
        return
    figures = {}
    for way in WAYS:
        command = [
            sys.executable, "-m", "bench.update", "--policy", str(bench.policy), "--episodes", str(bench.episodes),
            "--way", way, "--questions", str(bench.questions), "--prompt-tokens", str(bench.prompt_tokens),
        ]  # fmt: skip
        figures[way] = json.loads(output_of(way, command).splitlines()[-1])
        print(f"{way:26} {figures[way]['rate']:7.1f} tokens/s, peak {figures[way]['mib']:6.0f} MiB above", flush=True)
    prompts = f", prompts of {bench.prompt_tokens} tokens" if bench.prompt_tokens else ""
    fastest = {
        kind: max(found["rate"] for way, found in figures.items() if way.startswith(kind))
        for kind in ("shared", "plain")
    }
    ratio = fastest["shared"] / fastest["plain"]
    finish(
        [Bar(f"shared / plain tokens/s{prompts}, the faster budget of each", ratio, 2 if bench.prompt_tokens else 1)]
    )


def measure(bench: BenchOptions) -> dict[str, float]:
    budget, shared, again = WAYS[bench.way]
    episodes = taught(list(read_episodes(bench.episodes)), bench.questions)
    episodes = [lengthened(episode, bench.prompt_tokens) for episode in episodes]
    policy = load_policy(read_policy_card(bench.policy))
    if again:
        policy.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    policy.train()
    learner, options = Learner(policy), UpdateOptions(memory=MemoryOptions(token_budget=budget))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batch, context = prepare(episodes, options), UpdateContext(options, 1e-6, 1.0, shared)
    update(learner, prepare(episodes[:2], options), context)
    started = time.perf_counter()
    update(learner, batch, context)
    seconds = time.perf_counter() - started
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated() / 2**20
    return {"rate": sum(len(episode.ids) for episode in episodes) / seconds, "mib": peak}


def taught(episodes: list[Episode], questions: int) -> list[Episode]:
    """The first groups, with rewards that give every episode an advantage."""
    names = list(dict.fromkeys(episode.question_id for episode in episodes))[:questions]
    chosen = [episode for episode in episodes if episode.question_id in names]
    return [replace(episode, rewards={"made": float(n % 2)}) for n, episode in enumerate(chosen)]


def lengthened(episode: Episode, tokens: int) -> Episode:
    """The episode with a prompt of at least so many tokens, its own said again and again before it.

    Example: a prompt of 3 tokens a b c, lengthened to 5, becomes a b a b c.
    """
    prompt = episode.turns[0].start
    more = max(0, tokens - prompt)
    repeated = tuple(episode.ids[n % prompt] for n in range(more))
    return replace(
        episode, ids=(*repeated, *episode.ids), mask=(0,) * more + episode.mask,
        logprobs=(0.0,) * more + episode.logprobs, credits=(),
        turns=tuple(replace(turn, start=turn.start + more, end=turn.end + more) for turn in episode.turns),
    )  # fmt: skip


if __name__ == "__main__":
    run_script(main, description=__doc__)
