"""Whole steps of the search agent (sampling with real searches, rewards, update), ours and those of TRL's `tools=`.

    make bench-env
    python -m bench.step --data runs/bench/data --policy runs/bench/warm

Both train the same policy in one process, without a server, on as many questions and episodes, in the same number type,
with the same chat template, tool and limits, after a step that warms up. Both sample freely, so tokens/s counts the
tokens of each one's own episodes; the ratio has a figure for each of our steps, over TRL's mean. Our step includes its
rewards; TRL's reward costs nothing, and the best of its batch sizes counts. TRL's server mode is left out, since it
needs CUDA.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean

from bench.harness import Bar, finish, output_of, ratios, trl
from forage.agent.options import read_agent
from forage.agent.protocol import Protocol
from forage.arguments import run_script
from forage.errors import UserError
from forage.machine import compute_dtype
from forage.policy.adapters import newest_adapter
from forage.policy.manifest import read_policy_manifest
from forage.policy.policy import load_tokenizer
from forage.publishing.chat_template import write_template
from forage.runs.stats import StepStats, read_stats, stats_path

FASTER = 3.0  # bar: tokens/s over TRL's


@dataclass(frozen=True)
class Options:
    """What to measure on."""

    data: Path = Path("runs/bench/data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("runs/bench/warm")
    """Policy folder whose episodes are well-formed; one whose base is not quantised."""
    questions: int = 4
    """Questions of a step."""
    group: int = 4
    """Episodes of each question."""
    steps: int = 2
    """Counted steps of each."""
    temperature: float = 0.7
    batches: tuple[int, ...] = (1, 4)
    """TRL's per_device_train_batch_size."""

    def check(self) -> None:
        if self.steps < 1:
            raise UserError(f"--steps {self.steps}: give at least one")
        if read_policy_manifest(self.policy).quantized:
            raise UserError(f"{self.policy} is in 4 bits; give one made with --no-quantize")


@dataclass(frozen=True)
class Played:
    """What the counted steps made, a list entry for each."""

    seconds: Sequence[float]
    tokens: Sequence[float]
    searches: Sequence[float]
    """Mean number of an episode."""

    @property
    def rate(self) -> float:
        """Example: 3000 and 1000 tokens in 10 and 6 seconds are 250 tokens/s."""
        return sum(self.tokens) / sum(self.seconds)

    def line(self, name: str) -> str:
        return (
            f"{name:24} {self.rate:7.1f} tokens/s: {mean(self.seconds):5.1f} s and {mean(self.tokens):6,.0f} tokens a "
            f"step, {mean(self.searches):.2f} searches an episode"
        )


def main(options: Options) -> None:
    options.check()
    theirs = []
    with tempfile.TemporaryDirectory() as folder, store_server(options.data / "store") as store:
        for batch in options.batches:
            theirs.append(play_theirs(options, store, batch, Path(folder)))
            print(theirs[-1].line(f"TRL, {batch} a micro-batch"), flush=True)
        ours = play_ours(options, Path(folder))
    print(ours.line("ours"), flush=True)
    fastest = max(played.rate for played in theirs)
    faster = tuple(rate / fastest for rate in ratios(ours.tokens, ours.seconds))
    finish([Bar("whole step, ours / TRL tokens/s", faster, FASTER)])


def play_ours(options: Options, folder: Path) -> Played:
    """Steps of grpo_train.py, by its own statistics."""
    run = folder / "run"
    output_of("ours", [
        sys.executable, "grpo_train.py", "--data", options.data, "--policy", options.policy, "--run-dir", run,
        "--engine", "local", "--batch-size", options.questions, "--num-rollouts", options.group, "--temperature",
        options.temperature, "--max-steps", 1 + options.steps, "--learning-rate", 1e-6, "--eval-every", 0,
        "--report-to", "none", "--on-collapse", "warn",
    ])  # fmt: skip
    counted = read_stats(run)[1:]
    return Played(
        seconds_between(run, counted),
        [stats.episodes["tokens"] * stats.episodes["count"] for stats in counted],
        [stats.episodes["searches"] for stats in counted],
    )


def seconds_between(run: Path, steps: Sequence[StepStats]) -> list[float]:
    """How long each of these steps took, by when the statistics of the one before it were written."""
    ended = [stats_path(run, step).stat().st_mtime for step in (steps[0].step - 1, *(each.step for each in steps))]
    return [after - before for before, after in pairwise(ended)]


def play_theirs(options: Options, store: str, batch: int, folder: Path) -> Played:
    """Steps of TRL's GRPOTrainer."""
    manifest, settings = read_policy_manifest(options.policy), read_agent(options.policy)
    dtype = str(compute_dtype(manifest.dtype)).removeprefix("torch.")
    write_tokenizer(options.policy, folder / "tokenizer")
    return Played(**trl(
        "step", tokenizer=folder / "tokenizer", base=manifest.base, adapter=newest_adapter(options.policy), dtype=dtype,
        store=store, data=options.data / "train.jsonl", temperature=options.temperature, questions=options.questions,
        group=options.group, batch=batch, steps=1 + options.steps, turns=settings.max_turns,
        passage_tokens=settings.passage_tokens, turn_tokens=settings.max_turn_tokens,
        max_completion=settings.max_turns * (settings.max_turn_tokens + settings.k * settings.passage_tokens),
    ))  # fmt: skip


def write_tokenizer(policy: Path, folder: Path) -> None:
    """A policy's tokenizer, with the chat template of its training."""
    manifest = read_policy_manifest(policy)
    tokenizer = load_tokenizer(manifest)
    tokenizer.save_pretrained(folder)
    if not write_template(folder, Protocol.playing(tokenizer, read_agent(policy))):
        raise UserError(f"{manifest.base}: its chat template can't say the trained prompt, so TRL can't be given it")


@contextmanager
def store_server(store: Path) -> Iterator[str]:
    """The address of `document_store.py serve` while the block runs."""
    command = [sys.executable, "document_store.py", "serve", "--store", str(store), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if found := re.search(r"http://[\w.:]+\d", line):
                    yield found[0]
                    return
            raise UserError(f"document_store.py serve --store {store} failed, as it says above")
        finally:
            server.terminate()


if __name__ == "__main__":
    run_script(main, __doc__)
