"""How cost grows with the corpus, the length of an episode, the group, and the episodes that are sampled at once.

    python -m bench.growth --policy runs/bench/warm --figure docs/growth.png

A corpus is drawn from 50,000 words, the n-th of which is n times rarer than the first; its vectors are random. Episodes
consist of random tokens; those of a group share the first 384 of their 512. Each point runs in its own process. The
exponent of a cost is its slope on logarithmic axes: 1 is linear, 0 constant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from bench.harness import alone, peak_mib, seconds_of
from forage.arguments import run_script
from forage.engines.base import Request
from forage.engines.local import LocalEngine
from forage.errors import UserError
from forage.grpo.learner import Learner
from forage.policy.adapters import newest_adapter
from forage.policy.manifest import read_policy_manifest
from forage.policy.packing import TokenBatch, pack, pack_trees
from forage.policy.policy import load_base, load_policy
from forage.store.bm25 import BM25
from forage.store.vectors import exact_nearest

VOCABULARY, WORDS = 50_000, 120  # of the corpus, and of a chunk
PROMPT, OWN = 384, 128  # tokens that a group's episodes share, and of their own
SAMPLED = 32  # tokens of an episode that is sampled
QUERIES, WORDS_OF_A_QUERY, DIMENSION, HITS = 200, 5, 384, 10


@dataclass(frozen=True)
class Options:
    """What to measure on."""

    policy: Path = Path("runs/bench/warm")
    """Policy folder; one whose base is not quantised."""
    chunks: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    """Sizes of the corpus."""
    tokens: tuple[int, ...] = (256, 1024, 4096)
    """Lengths of an episode."""
    group: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Episodes of a question."""
    at_once: tuple[int, ...] = (1, 4, 16, 64)
    """Episodes that are sampled at once."""
    figure: Path | None = None
    """Picture to draw."""

    def check(self) -> None:
        for name in POINTS:
            if len(sizes := getattr(self, name)) < 2 or min(sizes) < 1:
                raise UserError(f"--{name} {' '.join(map(str, sizes))}: give two sizes or more, each at least 1")


Figures = dict[str, float]


def main(options: Options) -> None:
    options.check()
    curves = dict[str, dict[int, Figures]]()
    for kind, point in POINTS.items():
        curves[kind] = {size: alone(point, options, size) for size in getattr(options, kind)}
        print("\n".join(table(kind, curves[kind])), end="\n\n", flush=True)
    if options.figure:
        draw(curves, options.figure)


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


def draw(curves: Mapping[str, Mapping[int, Figures]], path: Path) -> None:
    """Each cost, on axes on which a power is a straight line, with its exponent."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    for panel, (kind, curve) in zip(figure.subplots(2, 2).flat, curves.items(), strict=True):
        sizes = list(curve)
        for name in next(iter(curve.values())):
            costs = [row[name] for row in curve.values()]
            panel.loglog(sizes, costs, "o-", label=f"{name}: {exponent(sizes, costs):.2f}")
        panel.set(xlabel=kind.replace("_", " "), xticks=sizes, xticklabels=sizes)
        panel.minorticks_off()
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=110)


# Points


def corpus(options: Options, size: int) -> Figures:
    """Both indexes over so many chunks, and one query after the other."""
    drawn, upto = np.random.default_rng(0), np.cumsum(1 / np.arange(1, VOCABULARY + 1))

    def words(count: int) -> list[str]:
        return [f"word{number}" for number in upto.searchsorted(drawn.random(count) * upto[-1], "right")]

    built: list[BM25] = []
    build = seconds_of(lambda: built.append(BM25.build(words(WORDS) for _ in range(size))))
    drawing = seconds_of(lambda: sum(len(words(WORDS)) for _ in range(size)))  # what the build spent on drawing
    queries = [words(WORDS_OF_A_QUERY) for _ in range(QUERIES)]
    sparse, sparse_mib = seconds_of(lambda: [built[0].rank(query, HITS) for query in queries]), peak_mib()
    vectors_ND = drawn.standard_normal((size, DIMENSION), np.float32)
    dense = seconds_of(lambda: list(exact_nearest(vectors_ND, vectors_ND[:QUERIES], HITS)))
    return {
        "BM25 built, s": max(build - drawing, 1e-3), "its peak, MiB": sparse_mib,
        "BM25, ms/query": 1e3 * sparse / QUERIES, "exact, ms/query": 1e3 * dense / min(size, QUERIES),
    }  # fmt: skip


def learning(options: Options, size: int) -> Figures:
    """An update on two episodes of so many tokens, half of them sampled."""
    return updated(options, pack(drawn(2, 0, size, size // 2), size))


def group(options: Options, size: int) -> Figures:
    """An update on so many episodes with one prompt."""
    return updated(options, pack_trees(drawn(size, PROMPT, OWN, OWN), PROMPT + size * OWN))


def updated(options: Options, parts: Sequence[TokenBatch]) -> Figures:
    policy = load_policy(read_policy_manifest(options.policy))
    policy.train()
    learner, before = Learner(policy), peak_mib()

    def update(some: Sequence[TokenBatch]) -> None:
        for part in some:
            learner.backward(learner.score(part, 1.0).logprobs_BT.mean(), last=False)

    update(pack(drawn(2, 0, 64, 32), 64))
    return {"an update, s": seconds_of(lambda: update(parts)), "MiB more": max(peak_mib() - before, 1.0)}


def sampling(options: Options, size: int) -> Figures:
    """So many episodes sampled at once, from prompts of their own."""
    manifest = read_policy_manifest(options.policy)
    engine, before = LocalEngine(load_base(manifest)), peak_mib()
    asyncio.run(engine.load_adapter("bench", newest_adapter(options.policy)))

    async def sample(count: int) -> None:
        asked = [Request(one.ids, SAMPLED, (), n, episode=str(n)) for n, one in enumerate(drawn(count, 0, PROMPT, 1))]
        await asyncio.gather(*map(engine.generate, asked))
        for request in asked:
            engine.release(request.episode)

    asyncio.run(sample(1))
    seconds = seconds_of(lambda: asyncio.run(sample(size)))
    return {"sampling, s": seconds, "MiB more": max(peak_mib() - before, 1.0)}


def drawn(count: int, shared: int, own: int, sampled: int) -> list[Any]:
    """Sequences of random tokens, the first of which are the same in all."""
    draw = torch.Generator().manual_seed(0)
    first = torch.randint(1, 100, (shared,), generator=draw).tolist()
    mask = (0,) * (shared + own - sampled) + (1,) * sampled
    return [
        SimpleNamespace(ids=(*first, *torch.randint(1, 100, (own,), generator=draw).tolist()), mask=mask)
        for _ in range(count)
    ]


POINTS: Mapping[str, Callable[[Options, int], Figures]] = {
    "chunks": corpus, "tokens": learning, "group": group, "at_once": sampling,
}  # fmt: skip


if __name__ == "__main__":
    run_script(main, __doc__)
