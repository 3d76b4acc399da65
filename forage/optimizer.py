"""The optimizer: options that every training script shares, and the one step that changes weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forage.arguments import fixed
from forage.errors import check_at_least_one, check_at_least_zero

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class OptimizerOptions:
    """The optimizer (AdamW)."""

    learning_rate: float = 5e-5
    """Peak learning rate. 0 in sft_train.py: by the size of the base, 1e-3 below a billion parameters, else 2e-4."""
    weight_decay: float = fixed(0.0)
    """Weight decay."""
    max_norm: float = fixed(1.0)
    """Clip the gradient to this norm."""

    def check(self) -> None:
        check_at_least_zero(self, "learning_rate")


@dataclass(frozen=True)
class MemoryOptions:
    """Memory of a training pass."""

    token_budget: int | None = None
    """Most tokens in a micro-batch: a lower number needs less memory and more passes. Left out: on a GPU, as many as
    fit (python -m forage.policy.memory)."""
    gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass: slower, with less memory (docs/training.md). Left out: on a GPU, only
    if they don't fit; else off."""

    def check(self) -> None:
        if self.token_budget is not None:
            check_at_least_one(self, "token_budget")


def update_weights(optimizer: torch.optim.Optimizer, learning_rate: float, max_norm: float) -> float:
    """Take a step with the gradients, clipped to a norm, and drop them. Returns the norm; if it is not finite, nothing
    changes.
    """
    import torch

    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    total: Any = torch.nn.utils.clip_grad_norm_(weights, max_norm)
    norm: float = (total.full_tensor() if hasattr(total, "full_tensor") else total).item()  # of FSDP2's parts
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm
