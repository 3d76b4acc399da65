"""The proof of a merge: the merged folder predicts what base + adapter predicts, on fixed texts.

Both are loaded in fp32, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forage.errors import UserError

# About twice the largest mean difference that rounding alone made on SmolLM2-135M: 0.026, 0.003, 0.000012 (r 16, alpha
# 32 on every linear layer, B of std 0.002 to 0.05, LoRA and DoRA). At std 0.02, half the scale made 0.17, twice the
# scale 0.36.
TOLERANCES = {"bfloat16": 0.05, "float16": 0.006, "float32": 1e-4}
TEXTS = (
    "Asthma is a long-term disease in which the airways of the lungs become inflamed and narrow.",
    "A person with type 1 diabetes makes little or no insulin, so that sugar stays in the blood.",
    "Question: What are the symptoms of gout?\nAnswer: Sudden, severe pain in a joint, often the big toe.",
    "The capital of France is Paris, which lies on the Seine.",
    '<tool_call>{"name": "search", "arguments": {"query": "treatment of iron deficiency"}}</tool_call>',
    "def square(number):\n    return number * number\n",
)


@dataclass(frozen=True)
class Proof:
    """Log-probabilities of the merged model compared with those of base + adapter, over the whole vocabulary."""

    positions: int
    mean: float
    effect: float
    """Mean difference between base + adapter and the base alone."""
    carried: float
    """How much of that effect the merged model has: 1 is all of it, 0 is a base without its adapter."""

    def __str__(self) -> str:
        return (
            f"log-probabilities at {self.positions} positions differ by {self.mean:.2g} on average; the adapter moves "
            f"them by {self.effect:.2g}, and the merged model has {self.carried:.1%} of that effect"
        )


def proof_texts(folder: Path) -> list[Tensor]:
    """The fixed texts' tokens, by a model's tokenizer."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            "the base has no tokenizer that can be loaded, which the proof needs; skip it with --no-prove"
        ) from error
    return [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]


def compare(base_NV: Tensor, wanted_NV: Tensor, merged_NV: Tensor) -> Proof:
    """Log-probabilities of the base alone, of base + adapter, and of the merged model."""
    apart_NV = (merged_NV - wanted_NV).abs()
    effect_NV = wanted_NV - base_NV
    # Rounding errors point anywhere, a wrong scale along the effect: the projection onto the effect finds a wrong scale
    # even where the tolerance is larger than the effect.
    carried = float((effect_NV * (merged_NV - base_NV)).sum() / effect_NV.square().sum()) if effect_NV.any() else 1.0
    return Proof(len(apart_NV), float(apart_NV.mean()), float(effect_NV.abs().mean()), carried)


def check(proof: Proof, dtype: str) -> None:
    """Refuse a wrong merge."""
    if not proof.mean <= TOLERANCES[dtype]:  # written this way so that NaN is refused too
        raise UserError(
            f"the merged model is not base + adapter: mean difference {proof.mean:.2g}, over {TOLERANCES[dtype]}; "
            "--no-prove keeps it all the same"
        )
    # An effect below the resolution of fp32 can't be measured. At B of std 0.0002 bfloat16 keeps 58 % of it.
    if proof.effect > TOLERANCES["float32"] and not 0.5 < proof.carried < 1.5:
        raise UserError(
            f"the merged model has {proof.carried:.0%} of the adapter's effect: the merge is wrong, or {dtype} is too "
            "coarse for so small an adapter (try --dtype float32)"
        )


@torch.no_grad()
def text_logprobs(model: Any, texts: Sequence[Tensor]) -> list[Tensor]:
    """(positions, vocabulary) of each text."""
    return [model(input_ids=ids_1T).logits[0].float().log_softmax(-1) for ids_1T in texts]
