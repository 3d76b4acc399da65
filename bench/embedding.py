"""Passages per second in fp32 and in bf16: does the embedder choose the faster one on this machine?

    python -m bench.embedding

Embeds the sample's answers with the packaged model. The precisions alternate, so that drift in the machine's speed
affects both alike.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.report import Bar, finish
from forage.cli import run_script
from forage.data.sample import QUESTIONS
from forage.files import json_lines
from forage.machine import has_bf16
from forage.store.embedder import PACKAGED_EMBEDDER, Embedder


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    passages: int = 96
    """Passages to embed in each run."""
    repeats: int = 3
    """Runs of each precision; the median counts."""


def main(bench: BenchOptions) -> None:
    embedder = Embedder(PACKAGED_EMBEDDER)
    passages = [row["answer"] for _, row in json_lines(QUESTIONS)][: bench.passages]
    models = {"fp32": embedder.model, "bf16": copy.deepcopy(embedder.model).bfloat16()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    vectors = {}
    for _ in range(bench.repeats):
        for name, model in models.items():
            started = time.perf_counter()
            vectors[name] = encode(embedder, model, passages)
            seconds[name].append(time.perf_counter() - started)
    speed = {name: len(passages) / float(np.median(times)) for name, times in seconds.items()}
    cosines = (vectors["fp32"] * vectors["bf16"]).sum(axis=1)
    print(
        f"fp32 {speed['fp32']:.1f}, bf16 {speed['bf16']:.1f} passages/s; least cosine between them {cosines.min():.4f}"
    )
    chosen, other = ("bf16", "fp32") if has_bf16(embedder.device) else ("fp32", "bf16")
    finish([Bar(f"{chosen}, which is chosen here, / {other}", speed[chosen] / speed[other], 1)])


def encode(embedder: Embedder, model: Any, passages: list[str]) -> Any:
    vectors = model.encode(passages, batch_size=embedder.batch_size, convert_to_tensor=True, show_progress_bar=False)
    return vectors.float().cpu().numpy()


if __name__ == "__main__":
    run_script(main, description=__doc__)
