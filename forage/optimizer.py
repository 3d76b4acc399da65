"""The optimizer: options of memory that training scripts share, and the one step that changes weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forage.errors import check_at_least_one

if TYPE_CHECKING:
    import torch

CPU_BUDGET = 1024  # tokens of a micro-batch, where none are given and there is no GPU
MAX_NORM = 1.0  # gradients are clipped to this norm


@dataclass(frozen=True)
class MemoryOptions:
    """Memory of a training pass."""

    token_budget: int | None = None
    """Maximum tokens per micro-batch. Fewer need less memory and more passes; halved when memory runs out. Left out:
    4096, or a whole episode, on a GPU; 1024 on a CPU."""
    gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass: slower, but needs less memory (docs/training.md). Left out: on for
    a 4-bit base on a GPU."""

    def check(self) -> None:
        if self.token_budget is not None:
            check_at_least_one(self, "token_budget")

    def on_this_device(self, longest: int, *, quantized: bool) -> MemoryOptions:
        """With what was left out, where there is a GPU. `longest`: most tokens of an episode."""
        import torch

        if not torch.cuda.is_available():
            return self
        again = quantized if self.gradient_checkpointing is None else self.gradient_checkpointing
        return replace(self, token_budget=self.token_budget or max(4096, longest), gradient_checkpointing=again)


def adamw(model: Any) -> torch.optim.Optimizer:
    """AdamW over what is trained of a model; `update_weights` sets the learning rate."""
    import torch

    return torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], weight_decay=0.0)


def update_weights(optimizer: torch.optim.Optimizer, learning_rate: float) -> float:
    """Take a step with the gradients, clipped, and drop them. Returns their norm; if it is not finite, nothing
    changes.
    """
    import torch

    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    total: Any = torch.nn.utils.clip_grad_norm_(weights, MAX_NORM)
    norm: float = (total.full_tensor() if hasattr(total, "full_tensor") else total).item()  # of FSDP2's parts
    if math.isfinite(norm):
        optimizer.step()
    optimizer.zero_grad()
    return norm
