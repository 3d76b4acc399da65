"""Peak memory and time of token_logprobs against the plain formula, forward and backward.

    python -m bench.logprobs

The batch has 4 sequences of 1,024 tokens, all of them sampled. The model has SmolLM2-135M's width, a vocabulary of
49,152 and only two layers, so that the output layer dominates. Each way runs in its own process, and its peak is the
operating system's figure minus the memory held before the call.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.report import Bar, finish
from forage.cli import run_script
from forage.policy.logprobs import token_logprobs
from forage.policy.packing import TokenBatch

VOCABULARY = 49_152


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    way: Literal["both", "ours", "plain"] = "both"
    """Which to run; one of them alone prints its figures for the comparison."""
    sequences: int = 4
    """Sequences in the batch."""
    tokens: int = 1024
    """Tokens of each."""


def main(bench: BenchOptions) -> None:
    if bench.way != "both":
        print(*measure(bench))
        return
    figures = {way: run_alone(way, bench) for way in ("ours", "plain")}
    for way, (mebibytes, seconds, value) in figures.items():
        print(f"{way:5} peak {mebibytes:,.0f} MiB over what was held, {seconds:.2f} s, sum {value:.3f}")
    ours, plain = figures["ours"], figures["plain"]
    difference = abs(ours[2] - plain[2]) / (bench.sequences * bench.tokens)
    finish(
        [
            Bar("plain peak / ours", plain[0] / ours[0], 3),
            Bar("mean difference under 1e-4", float(difference < 1e-4), 1),
        ]
    )


def run_alone(way: str, bench: BenchOptions) -> tuple[float, float, float]:
    sizes = ["--sequences", str(bench.sequences), "--tokens", str(bench.tokens)]
    command = [sys.executable, "-m", f"bench.{Path(__file__).stem}", "--way", way, *sizes]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    mebibytes, seconds, value = map(float, printed.split())
    return mebibytes, seconds, value


def measure(bench: BenchOptions) -> tuple[float, float, float]:
    """(peak MiB over what was held before, seconds, sum of the log-probabilities)."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=576, intermediate_size=1536, num_hidden_layers=2,
            num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
        )
    )  # fmt: skip
    ids = torch.randint(0, VOCABULARY, (bench.sequences, bench.tokens))
    sampled = torch.ones_like(ids)
    sampled[:, 0] = 0
    positions = torch.arange(bench.tokens).expand_as(ids)
    sequence = torch.arange(bench.sequences)[:, None].expand_as(ids)
    batch = TokenBatch(ids, positions, sampled, sequence, torch.ones_like(ids))
    for parameter in model.parameters():  # gradients exist before and after, so they don't count towards the peak
        parameter.grad = torch.zeros_like(parameter)
    before, started = peak_mebibytes(), time.perf_counter()
    total = token_logprobs(model, batch).sum() if bench.way == "ours" else plain_logprobs(model, batch).sum()
    total.backward()  # type: ignore[no-untyped-call]
    return peak_mebibytes() - before, time.perf_counter() - started, float(total)


def plain_logprobs(model: LlamaForCausalLM, batch: TokenBatch) -> torch.Tensor:
    """The textbook formula: all logits, log-softmax, then the entries of the tokens."""
    logits: torch.Tensor = model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT).logits.float()
    return logits.log_softmax(-1)[:, :-1].gather(2, batch.ids_BT[:, 1:, None]).squeeze(2)


def peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    run_script(main, description=__doc__)
