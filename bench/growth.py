"""How cost grows with the corpus and with the length of an episode.

    python -m bench.growth --policy runs/demo/warm

A corpus is drawn from 50,000 words, the n-th of which is n times rarer than the first; its vectors are random. Episodes
of random tokens are learnt from, in micro-batches of one. Each point is a process of its own. The exponent of a cost is
the slope of its logarithm: 1 is linear, 0 constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from bench.harness import alone, peak_mib, seconds_of
from forage.cli import run_script
from forage.errors import UserError
from forage.grpo.learner import Learner
from forage.policy.card import read_policy_card
from forage.policy.packing import pack
from forage.policy.policy import load_policy
from forage.store.bm25 import BM25
from forage.store.vectors import exact_nearest

VOCABULARY, WORDS = 50_000, 120  # of the corpus, and of a chunk
QUERIES, WORDS_OF_A_QUERY, DIMENSION, HITS = 200, 5, 384, 10


@dataclass(frozen=True)
class Options:
    """What to measure on."""

    policy: Path = Path("runs/demo/warm")
    """Policy folder; one whose base is not quantised."""
    chunks: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    """Sizes of the corpus."""
    tokens: tuple[int, ...] = (256, 1024, 4096)
    """Lengths of an episode."""

    def check(self) -> None:
        for name in POINTS:
            if len(sizes := getattr(self, name)) < 2 or min(sizes) < 1:
                raise UserError(f"--{name} {' '.join(map(str, sizes))}: give two sizes or more, each at least 1")


Figures = dict[str, float]


def main(options: Options) -> None:
    options.check()
    for kind, point in POINTS.items():
        curve = {size: alone(point, options, size) for size in getattr(options, kind)}
        print("\n".join(table(kind, curve)), end="\n\n", flush=True)


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


def corpus(options: Options, size: int) -> Figures:
    """Both indexes over so many chunks, and one query after the other."""
    drawn, share = np.random.default_rng(0), 1 / np.arange(1, VOCABULARY + 1)

    def words(count: int) -> list[str]:
        return [f"word{number}" for number in drawn.choice(VOCABULARY, count, p=share / share.sum())]

    built: list[BM25] = []
    build = seconds_of(lambda: built.append(BM25.build(words(WORDS) for _ in range(size))))
    drawing = seconds_of(lambda: sum(len(words(WORDS)) for _ in range(size)))  # what the build spent on drawing
    queries = [words(WORDS_OF_A_QUERY) for _ in range(QUERIES)]
    sparse, sparse_mib = seconds_of(lambda: [built[0].rank(query, HITS) for query in queries]), peak_mib()
    vectors_ND = drawn.standard_normal((size, DIMENSION), np.float32)
    dense = seconds_of(lambda: list(exact_nearest(vectors_ND, vectors_ND[:QUERIES], HITS)))
    return {
        "BM25 built, s": max(build - drawing, 1e-3), "its peak, MiB": sparse_mib,
        "BM25, ms/query": 1e3 * sparse / QUERIES,
        "vectors, MiB": vectors_ND.nbytes / 2**20, "exact, ms/query": 1e3 * dense / min(size, QUERIES),
    }  # fmt: skip


def learning(options: Options, size: int) -> Figures:
    """An update on two episodes of so many tokens, half of them sampled."""
    policy = load_policy(read_policy_card(options.policy))
    policy.train()
    learner, drawn = Learner(policy), torch.Generator().manual_seed(0)
    before = peak_mib()

    def update(tokens: int) -> None:
        ids, half = tuple(torch.randint(1, 100, (tokens,), generator=drawn).tolist()), tokens // 2
        episode = SimpleNamespace(ids=ids, mask=(0,) * half + (1,) * (tokens - half))
        for part in pack([episode, episode], tokens):
            learner.backward(learner.score(part, 1.0).logprobs_BT.sum() / tokens, last=False)

    update(64)
    seconds = seconds_of(lambda: update(size))
    return {
        "an update, s": seconds,
        "1,000 tokens, s": seconds / (2 * size) * 1e3,
        "MiB more": max(peak_mib() - before, 1.0),
    }


POINTS: Mapping[str, Callable[[Options, int], Figures]] = {"chunks": corpus, "tokens": learning}


if __name__ == "__main__":
    run_script(main, __doc__)
