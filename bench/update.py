"""Time and peak memory of one update, for several ways to pack episodes into micro-batches, and for TRL's GRPOTrainer.

    python -m bench.update --policy runs/bench/warm --episodes runs/bench/run/episodes/000000/trainer.jsonl
    make bench-env
    python -m bench.update --ways "shared 2048" "shared 512" --questions 4 --trl 1 4

Each way runs in its own process, on the same episodes with made-up advantages, after a first update of them as a
warm-up. Tokens/s counts the episodes' tokens, however many were computed. With --trl, both sides load base and adapter
in the same number types, and for each its best speed and its least memory count.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import torch

from bench.harness import Bar, alone, finish, in_turns, peak_mib, ratios, seconds_of, trl
from forage.agent.episode import Episode, read_episodes, write_episodes
from forage.arguments import run_script
from forage.errors import UserError
from forage.grpo.learner import Learner
from forage.grpo.options import UpdateOptions
from forage.grpo.update import UpdateContext, prepare, update
from forage.machine import compute_dtype
from forage.optimizer import MemoryOptions
from forage.policy.adapters import newest_adapter
from forage.policy.manifest import read_policy_manifest
from forage.policy.policy import load_policy

# Prompts shared or not, the token budget, and whether activations are recomputed.
WAYS = (
    "shared 4096", "shared 2048", "shared 1024", "shared 512", "shared 256", "shared 512 checkpointed", "plain 2048",
    "plain 512", "plain 2048 checkpointed",
)  # fmt: skip
FASTER, LEANER = 3.0, 2.0  # bars: tokens/s over TRL's, and TRL's peak over ours


@dataclass(frozen=True)
class Options:
    """What to measure on."""

    policy: Path = Path("runs/bench/warm")
    """Policy folder."""
    episodes: Path = Path("runs/bench/run/episodes/000000/trainer.jsonl")
    """File of a step's episodes."""
    questions: int = 2
    """Groups of it."""
    prompt_tokens: int = 0
    """Give all episodes the first one's prompt, repeated to this many tokens; 0: leave each its own."""
    ways: tuple[str, ...] = WAYS
    """Token budget, and whether prompts are shared and activations recomputed."""
    trl: tuple[int, ...] = ()
    """Compare with TRL, by per_device_train_batch_size."""
    rounds: int = 1
    """How often each is measured, taking turns."""

    def check(self) -> None:
        if unknown := [way for way in self.ways if way not in WAYS]:
            raise UserError(f"--ways {unknown[0]}: choose among {', '.join(WAYS)}")
        if not self.ways or self.rounds < 1:
            raise UserError("--ways and --rounds: give at least one")
        if self.trl and read_policy_manifest(self.policy).quantized:
            raise UserError(
                f"{self.policy} is in 4 bits, which the two unpack differently; give one made with --no-quantize"
            )


@dataclass(frozen=True)
class Figures:
    """What one update took."""

    rate: float
    """Tokens a second."""
    mib: float
    """Peak over the loaded policy."""


def main(options: Options) -> None:
    options.check()
    episodes = taught(list(read_episodes(options.episodes)), options.questions)
    if tokens := options.prompt_tokens:
        prompt = episodes[0].ids[: episodes[0].turns[0].start]
        episodes = [with_prompt(episode, tuple(islice(cycle(prompt), tokens))) for episode in episodes]
    print(f"{len(episodes)} episodes, {sum(len(episode.ids) for episode in episodes)} tokens", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.jsonl"
        write_episodes(path, episodes)
        ways = {way: partial(said, way, partial(alone, measure, options.policy, path, way)) for way in options.ways}
        ways |= {
            f"TRL {batch}": partial(said, f"TRL, {batch} a micro-batch", partial(measure_trl, options, path, batch))
            for batch in options.trl
        }
        found = in_turns(ways, options.rounds)
    finish(bars(found, options))


def said(name: str, measure: partial[Figures]) -> Figures:
    """The figures, printed too."""
    figures = measure()
    print(f"{name:26} {figures.rate:7.1f} tokens/s, peak {figures.mib:6.0f} MiB above", flush=True)
    return figures


def bars(found: dict[str, list[Figures]], options: Options) -> list[Bar]:
    """The bars of what was measured: with shared prompts against without, and ours against TRL's."""
    (shared, _), (plain, _), (theirs, their_mib) = (best(found, kind) for kind in ("shared", "plain", "TRL"))
    ours, our_mib = best(found, ("shared", "plain"))
    result = []
    if shared and plain:
        prompts = f", one prompt of {options.prompt_tokens} tokens" if options.prompt_tokens else ""
        name = f"shared / plain tokens/s{prompts}, the faster budget of each"
        result.append(Bar(name, ratios(shared, plain), 2 if options.prompt_tokens else 1))
    if options.trl:
        result.append(Bar("ours / TRL tokens/s, the fastest of each", ratios(ours, theirs), FASTER))
        result.append(Bar("TRL / our peak memory, the leanest of each", ratios(their_mib, our_mib), LEANER))
    return result


def best(found: dict[str, list[Figures]], kind: str | tuple[str, ...]) -> tuple[list[float], list[float]]:
    """The most tokens/s and the least MiB of a kind's ways in each round."""
    rounds = list(zip(*(figures for way, figures in found.items() if way.startswith(kind)), strict=True))
    return [max(each.rate for each in ways) for ways in rounds], [min(each.mib for each in ways) for ways in rounds]


def measure(folder: Path, path: Path, way: str) -> Figures:
    kind, budget, *again = way.split()
    episodes = list(read_episodes(path))
    policy = load_policy(read_policy_manifest(folder))
    if again:
        policy.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    policy.train()
    learner, options = Learner(policy), UpdateOptions(memory=MemoryOptions(token_budget=int(budget)))
    before, batch = peak_mib(), prepare(episodes, options)
    context = UpdateContext(options, 1.0, kind == "shared")
    update(learner, batch, context)  # touches as much memory as the one that is timed, which takes seconds
    seconds = seconds_of(lambda: update(learner, batch, context))
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else peak_mib() - before
    return Figures(sum(len(episode.ids) for episode in episodes) / seconds, peak)


def measure_trl(options: Options, path: Path, batch: int) -> Figures:
    manifest = read_policy_manifest(options.policy)
    dtype = str(compute_dtype(manifest.dtype)).removeprefix("torch.")
    adapter = newest_adapter(options.policy)
    return Figures(**trl("update", episodes=path, base=manifest.base, adapter=adapter, dtype=dtype, batch=batch))


def taught(episodes: list[Episode], questions: int) -> list[Episode]:
    """The first groups, with rewards that give every episode an advantage."""
    names = list(dict.fromkeys(episode.question_id for episode in episodes))[:questions]
    chosen = [episode for episode in episodes if episode.question_id in names]
    return [replace(episode, rewards={"made": float(n % 2)}) for n, episode in enumerate(chosen)]


def with_prompt(episode: Episode, prompt: tuple[int, ...]) -> Episode:
    """The episode with another prompt."""
    start = episode.turns[0].start
    longer = len(prompt) - start
    return replace(
        episode, ids=prompt + episode.ids[start:], mask=(0,) * len(prompt) + episode.mask[start:],
        logprobs=(0.0,) * len(prompt) + episode.logprobs[start:], credits=(),
        turns=tuple(replace(turn, start=turn.start + longer, end=turn.end + longer) for turn in episode.turns),
    )  # fmt: skip


if __name__ == "__main__":
    run_script(main, description=__doc__)
