"""How much memory a run holds for as long as it trains, told before a model is loaded.

Counted from the model's shape: its weights, the copies for reference and value model, the adapter, gradients and Adam's
two moments. What a forward pass keeps comes on top and depends on --micro-batch-size.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import nn

from forage.errors import UserError
from forage.machine import compute_dtype
from forage.policy.footprint import FP32, GIB, TRAINED_NF4
from forage.rewriter.options import ActorOptions

TRAINED = 3 * FP32  # of each trained weight: its gradient and Adam's two moments


@dataclass(frozen=True)
class Memory:
    """Bytes of a training run."""

    policy: float
    adapter: float
    reference: float
    value: float
    optimizer: float
    """Gradients and Adam's moments."""

    @property
    def total(self) -> float:
        return float(sum(astuple(self)))

    def __str__(self) -> str:
        parts = {
            "the policy": self.policy, "its adapter": self.adapter, "the reference": self.reference,
            "the value model": self.value, "gradients and Adam": self.optimizer,
        }  # fmt: skip
        named = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items() if size >= GIB / 200)
        held = f"{self.total / GIB:.2f} GiB ({named})" if named else f"{self.total / 2**20:.1f} MiB"
        return f"memory: {held}, and what a pass computes"


def empty_model(name: str) -> Any:
    """The model without its weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(name))  # type: ignore[no-untyped-call]


def memory_of(lm: Any, options: ActorOptions) -> Memory:
    """What the actors of make_actors hold once they are trained."""
    whole, head = numbers_of(lm), lm.config.get_text_config().hidden_size + 1
    value = head + (0 if options.shared else numbers_of(getattr(lm, lm.base_model_prefix)))
    if not options.lora_rank:
        return Memory(FP32 * whole, 0, FP32 * whole, FP32 * value, TRAINED * (whole + value))
    shapes = [tuple(layer.weight.shape) for layer in adapted_layers(lm)]
    adapter = options.lora_rank * sum(map(sum, shapes))
    packed = sum(rows * columns for rows, columns in shapes) if options.quantize else 0
    policy = (whole - packed) * compute_dtype(options.dtype).itemsize + packed * TRAINED_NF4
    return Memory(policy, FP32 * adapter, 0, FP32 * value, TRAINED * (adapter + value))


def numbers_of(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def adapted_layers(lm: Any) -> list[Any]:
    """The layers that all-linear means: all linear ones, gpt2's Conv1D included, but not the output layer."""
    from transformers.pytorch_utils import Conv1D

    output = lm.get_output_embeddings()
    return [layer for layer in lm.modules() if isinstance(layer, nn.Linear | Conv1D) and layer is not output]


def check_room(memory: Memory, room: float, options: ActorOptions) -> None:
    """Refuse before hours of downloading what a GPU can't hold."""
    if memory.total <= room:
        return
    smaller = "--quantize, or a smaller --base-model" if options.lora_rank else "--lora-rank 16"
    if options.quantize:
        smaller = "a smaller --base-model"
    raise UserError(f"{memory}: more than the GPU's {room / GIB:.2f} GiB; give {smaller}")
