"""How cost grows: with the corpus, with the episodes of a question, and with their length.

    python -m bench.growth --data runs/demo/data --policy runs/demo/warm --write docs/growth.png

A corpus is made by drawing chunks' words from those of --data; its vectors are random. Groups are sampled by the local
engine from one question's prompt, 32 tokens each. Episodes of random tokens are learnt from, in micro-batches of one.
Each point is a process of its own. The exponent of a cost is the slope of its logarithm: 1 is linear, 0 constant.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.processes import output_of
from forage.cli import run_script
from forage.errors import UserError

QUERIES, WORDS_OF_A_QUERY, DIMENSION, TOKENS, HITS = 200, 5, 384, 32, 10


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    data: Path = Path("runs/demo/data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("runs/demo/warm")
    """Policy folder; one whose base is not quantised."""
    chunks: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    """Sizes of the corpus."""
    groups: tuple[int, ...] = (2, 8, 32)
    """Episodes of one question."""
    tokens: tuple[int, ...] = (256, 1024, 4096)
    """Lengths of an episode."""
    write: Path | None = None
    """Picture to draw."""
    point: str = ""
    """Measure this alone, such as chunks:1000, and print its figures as JSON."""

    def check(self) -> None:
        for name in ("chunks", "groups", "tokens"):
            if len(sizes := getattr(self, name)) < 2 or min(sizes) < 1:
                raise UserError(f"--{name} {' '.join(map(str, sizes))}: give two sizes or more, each at least 1")


Figures = dict[str, float]


def main(bench: BenchOptions) -> None:
    bench.check()
    if bench.point:
        kind, _, size = bench.point.partition(":")
        print(json.dumps(POINTS[kind](bench, int(size))))
        return
    curves = {}
    for kind in POINTS:
        sizes = getattr(bench, kind)
        curves[kind] = dict(zip(sizes, [measured(bench, kind, size) for size in sizes], strict=True))
        print("\n".join(table(kind, curves[kind])), end="\n\n", flush=True)
    if bench.write:
        draw(curves, bench.write)


def measured(bench: BenchOptions, kind: str, size: int) -> Figures:
    """A point's figures, by a process of its own."""
    command = [
        sys.executable, "-m", "bench.growth", "--data", bench.data, "--policy", bench.policy, "--point",
        f"{kind}:{size}",
    ]  # fmt: skip
    figures: Figures = json.loads(output_of(f"{kind} {size}", command).splitlines()[-1])
    return figures


def table(kind: str, curve: Mapping[int, Figures]) -> list[str]:
    """Markdown: a line for each size, and the exponent of each cost."""
    names = list(next(iter(curve.values())))
    lines = [f"| {kind} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {size:,} | {' | '.join(f'{row[name]:,.4g}' for name in names)} |" for size, row in curve.items()]
    exponents = [exponent(list(curve), [row[name] for row in curve.values()]) for name in names]
    return [*lines, f"| exponent | {' | '.join(f'{each:.2f}' for each in exponents)} |"]


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost over log size, by least squares. Example: sizes 1, 10 and costs 3, 300 give 2."""
    return round(float(np.polyfit(np.log(sizes), np.log(costs), 1)[0]), 6) + 0.0  # not -0.0


# Points


def corpus(bench: BenchOptions, size: int) -> Figures:
    """Both indexes over so many chunks, and one query after the other."""
    from forage.store.bm25 import BM25
    from forage.store.vectors import exact_nearest

    vocabulary, share, lengths = words_of(bench.data)
    drawn = np.random.default_rng(0)

    def texts() -> Iterator[list[str]]:
        for length in drawn.choice(lengths, size):
            yield [vocabulary[number] for number in drawn.choice(len(vocabulary), length, p=share)]

    build, index = timed(lambda: BM25.build(texts()))
    drawing, _ = timed(lambda: sum(1 for _ in texts()))  # what the build spent on drawing
    queries = [list(drawn.choice(vocabulary, WORDS_OF_A_QUERY, p=share)) for _ in range(QUERIES)]
    sparse, _ = timed(lambda: [index.rank(query, HITS) for query in queries])
    sparse_mib = peak_mib()
    vectors_ND = drawn.standard_normal((size, DIMENSION), np.float32)
    dense, _ = timed(lambda: list(exact_nearest(vectors_ND, vectors_ND[:QUERIES], HITS)))
    return {
        "BM25 built, s": max(build - drawing, 1e-3), "its peak, MiB": sparse_mib,
        "BM25, ms/query": 1e3 * sparse / QUERIES,
        "vectors, MiB": vectors_ND.nbytes / 2**20, "exact, ms/query": 1e3 * dense / min(size, QUERIES),
    }  # fmt: skip


def words_of(data: Path) -> tuple[list[str], Any, list[int]]:
    """(words, the share of each, lengths of chunks) of a store."""
    from forage.store.bm25 import Tokenizer
    from forage.store.document_store import read_chunks

    tokenized = [Tokenizer()(chunk.text) for chunk in read_chunks(data / "store" / "chunks.jsonl")]
    words, counts = np.unique(np.array([word for words in tokenized for word in words]), return_counts=True)
    return words.tolist(), counts / counts.sum(), [max(1, len(words)) for words in tokenized]


def sampling(bench: BenchOptions, size: int) -> Figures:
    """A group of so many episodes of one prompt."""
    from forage.agent.protocol import Protocol
    from forage.engines.base import Request
    from forage.engines.local import LocalEngine
    from forage.policy.adapters import newest_adapter
    from forage.policy.card import read_policy_card
    from forage.policy.policy import load_base, load_tokenizer

    card = read_policy_card(bench.policy)
    prompt = tuple(Protocol(load_tokenizer(card)).prompt("What is gout?"))
    engine = LocalEngine(load_base(card))
    asyncio.run(engine.load_adapter("growth", newest_adapter(bench.policy)))

    async def group(salt: int) -> None:
        ids = (*prompt[:-1], salt, prompt[-1])  # another prompt in each round
        await asyncio.gather(
            *(engine.generate(Request(ids, TOKENS, (), number, episode=f"{salt}/{number}")) for number in range(size))
        )
        for number in range(size):
            engine.release(f"{salt}/{number}")

    asyncio.run(group(1))
    seconds, _ = timed(lambda: asyncio.run(group(2)))
    return {"a group, s": seconds, "an episode, s": seconds / size}


def learning(bench: BenchOptions, size: int) -> Figures:
    """An update on two episodes of so many tokens, half of them sampled."""
    import torch

    from forage.grpo.learner import Learner
    from forage.policy.card import read_policy_card
    from forage.policy.packing import pack
    from forage.policy.policy import load_policy

    policy = load_policy(read_policy_card(bench.policy))
    policy.train()
    learner = Learner(policy)
    before = peak_mib()
    drawn = torch.Generator().manual_seed(0)

    def update(tokens: int) -> None:
        ids = tuple(torch.randint(1, 100, (tokens,), generator=drawn).tolist())
        episode = Row(ids, (0,) * (tokens // 2) + (1,) * (tokens - tokens // 2))
        for part in pack([episode, episode], tokens):
            learner.backward(learner.score(part, 1.0).logprobs_BT.sum() / tokens, last=False)

    update(64)
    seconds, _ = timed(lambda: update(size))
    return {"an update, s": seconds, "1,000 tokens, s": seconds / (2 * size) * 1e3, "MiB more": peak_mib() - before}


@dataclass(frozen=True)
class Row:
    """As much of an episode as packing needs."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]


POINTS: Mapping[str, Callable[[BenchOptions, int], Figures]] = {
    "chunks": corpus, "groups": sampling, "tokens": learning,
}  # fmt: skip


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def draw(curves: Mapping[str, Mapping[int, Figures]], path: Path) -> None:
    """A panel for each kind: its costs over its size, on logarithmic axes."""
    from matplotlib.figure import Figure

    titles = {"chunks": "chunks of the corpus", "groups": "episodes of a group", "tokens": "tokens of an episode"}
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    for axes, (kind, curve) in zip(figure.subplots(1, len(curves)), curves.items(), strict=True):
        for name in next(iter(curve.values())):
            costs = [row[name] for row in curve.values()]
            axes.loglog(list(curve), costs, marker="o", label=f"{name} ({exponent(list(curve), costs):.2f})")
        axes.set_xlabel(titles[kind])
        axes.set_xticks(list(curve), [f"{size:,}" for size in curve])
        axes.minorticks_off()
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
