"""Passages per second by number type and by batching, and what each does to the ranking.

    python -m bench.embedding                                 the sample's answers
    python -m bench.embedding --data medquad.jsonl.gz         a data set's, drawn at random

Every way embeds the same passages with the packaged model, in turn, so that drift in the machine's speed affects all
alike. MRR is that of each passage's own question among all of them; questions are embedded in fp32, as the store does.
int8 is PyTorch's dynamic quantization of the linear layers: weights once, activations as they come.
"""

from __future__ import annotations

import copy
import random
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from bench.report import Bar, finish
from forage.cli import run_script
from forage.data.options import Columns
from forage.data.qa_rows import read_records, to_rows
from forage.data.sample import QUESTIONS
from forage.errors import UserError
from forage.machine import gains_by_bf16
from forage.store.embedder import PACKAGED_EMBEDDER, Embedder, Vectors

LOSS = 0.005  # MRR that a faster way may cost


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    data: str = str(QUESTIONS)
    """A .jsonl, .jsonl.gz, .csv or .parquet file with questions and answers."""
    passages: int = 512
    """Passages to embed in each run."""
    repeats: int = 3
    """Runs of each way; the median counts."""


def main(bench: BenchOptions) -> None:
    pairs = question_and_answer(bench)
    embedder = Embedder(PACKAGED_EMBEDDER)
    queries, passages = ([pair[place] for pair in pairs] for place in (0, 1))
    queries_ND = embedder.encode_queries(queries)
    chosen, other = ("bf16", "fp32") if gains_by_bf16(embedder.device) else ("fp32", "bf16")
    ways = ways_of(embedder, chosen)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    vectors: dict[str, Vectors] = {}
    for _ in range(bench.repeats):
        for name, way in ways.items():
            started = time.perf_counter()
            vectors[name] = way(passages)
            seconds[name].append(time.perf_counter() - started)
    speeds = {name: len(passages) / median(times) for name, times in seconds.items()}
    mrr = {name: mean_reciprocal_rank(queries_ND, vectors_ND) for name, vectors_ND in vectors.items()}
    print(f"{len(passages)} passages of {np.mean(embedder.count_tokens(passages)):.0f} tokens\n")
    print("\n".join(table(speeds, mrr, vectors)))
    finish(
        [
            Bar(f"{chosen}, which is chosen here, / {other}", speeds[chosen] / speeds[other], 1),
            Bar("sorted by length / in order", speeds[chosen] / speeds["in order"], 1),
            Bar(f"int8 / {chosen}", speeds["int8"] / speeds[chosen]),
            Bar(f"MRR, {chosen} - fp32 + {LOSS}", mrr[chosen] - mrr["fp32"] + LOSS, 0),
        ]
    )


def question_and_answer(bench: BenchOptions) -> list[tuple[str, str]]:
    """As many pairs as asked for, or all there are; the same in every run."""
    rows, _ = to_rows(read_records(bench.data, Path("data")), Columns())
    pairs = sorted({(row.question, row.answer) for row in rows if row.answer})
    if not pairs:
        raise UserError(f"--data {bench.data} has no question with an answer")
    random.Random(0).shuffle(pairs)
    return pairs[: bench.passages]


def ways_of(embedder: Embedder, chosen: str) -> dict[str, Callable[[Sequence[str]], Vectors]]:
    """How passages can be embedded, by name; "in order" is the chosen number type without sorting by length."""
    models = {"fp32": embedder.model, "bf16": copy.deepcopy(embedder.model).bfloat16(), "int8": int8(embedder.model)}

    def in_order(passages: Sequence[str]) -> Vectors:
        """Batches of neighbours, whatever their lengths."""
        firsts = range(0, len(passages), embedder.batch_size)
        parts = [passages[first : first + embedder.batch_size] for first in firsts]
        return np.concatenate([encode(embedder, models[chosen], part) for part in parts])

    return {name: lambda passages, model=model: encode(embedder, model, passages) for name, model in models.items()} | {
        "in order": in_order
    }


def int8(model: Any) -> Any:
    with warnings.catch_warnings():  # that it moves to another package
        warnings.simplefilter("ignore")
        quantize: Any = torch.ao.quantization.quantize_dynamic
        return quantize(copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8)


def encode(embedder: Embedder, model: Any, passages: Sequence[str]) -> Vectors:
    vectors = model.encode(
        list(passages), batch_size=embedder.batch_size, convert_to_tensor=True, show_progress_bar=False
    )
    return np.asarray(torch.nn.functional.normalize(vectors.float(), dim=1).numpy(), np.float32)


def mean_reciprocal_rank(queries_ND: Vectors, passages_ND: Vectors) -> float:
    """How high each query ranks its own passage among all. Example: ranks 1 and 2 give .75."""
    scores_NN = queries_ND.astype(np.float64) @ passages_ND.astype(np.float64).T
    ranks_N = 1 + (scores_NN > scores_NN.diagonal()[:, None]).sum(axis=1)
    return float((1 / ranks_N).mean())


def table(speeds: dict[str, float], mrr: dict[str, float], vectors: dict[str, Vectors]) -> list[str]:
    """Markdown: a line for each way."""
    lines = ["| way | passages/s | MRR | least cosine to fp32 |", "|---|---|---|---|"]
    for name, speed in speeds.items():
        least = (vectors["fp32"] * vectors[name]).sum(axis=1).min()
        lines.append(f"| {name} | {speed:.1f} | {mrr[name]:.4f} | {least:.4f} |")
    return lines


if __name__ == "__main__":
    run_script(main, description=__doc__)
