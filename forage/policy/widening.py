"""An adapter's first product, which computes in fp32 but keeps its input for the backward pass as it came.

PEFT widens the input of each adapted layer before this product, and autograd keeps every copy: six a layer, where the
base's own products, which are not trained, keep nothing. They are a third to a half of what an update holds. Here the
bf16 input is kept, which layers that read the same one share, and widened again when its gradient is due. The figures
are the same, since the same numbers are multiplied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class WideningLinear(nn.Linear):
    """A linear layer without a bias, whose input may be narrower than its weight."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype == self.weight.dtype:
            return super().forward(input)
        product: Tensor = _Widened.apply(input, self.weight)  # type: ignore[no-untyped-call]
        return product


class _Widened(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, narrow: Tensor, weight_RD: Tensor) -> Tensor:
        ctx.save_for_backward(narrow, weight_RD)
        return nn.functional.linear(narrow.to(weight_RD.dtype), weight_RD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        narrow, weight_RD = ctx.saved_tensors
        [gradient] = gradients
        of_input, of_weight = ctx.needs_input_grad
        gradient_NR = gradient.reshape(-1, len(weight_RD))
        return (
            (gradient @ weight_RD).to(narrow.dtype) if of_input else None,
            gradient_NR.T @ narrow.reshape(-1, narrow.shape[-1]).to(weight_RD.dtype) if of_weight else None,
        )


def keep_inputs_narrow(policy: Any) -> None:
    """Let every plain LoRA layer of a PEFT policy widen its input so; to be called again after adapters are added.

    Left as they are: layers with dropout, which PEFT applies to the widened input, and variants such as DoRA.
    """
    from peft.tuners.lora import LoraLayer

    for module in policy.modules():
        if not isinstance(module, LoraLayer) or module.lora_variant or not module.lora_A:
            continue
        if all(isinstance(dropout, nn.Identity) for dropout in module.lora_dropout.values()):
            for first in module.lora_A.values():
                first.__class__ = WideningLinear
            module.cast_input_dtype_enabled = False  # PEFT's own widening
