"""Products of a bf16 and an fp32 side: the output layer's logits, and an adapter's first product.

The output layer in fp32: its weight stays in bf16, but its logits are never rounded to bf16.

A logit of 20 in bf16 is a multiple of 1/8. Products of two bf16 numbers are exact in fp32, so only the sum's type has
to change. Where a matrix product can do that itself (CUDA), it costs nothing; elsewhere the weight is widened a few
rows at a time, small enough to stay in the processor's cache.

An adapter's first product, which computes in fp32 but keeps its input for the backward pass as it came.

PEFT widens the input of each adapted layer before this product, and autograd keeps every copy: six a layer, where the
base's own products, which are not trained, keep nothing. They are a third to a half of what an update holds. Here the
bf16 input is kept, which layers that read the same one share, and widened again when its gradient is due. The figures
are the same, since the same numbers are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# The output layer

HALVES = (torch.bfloat16, torch.float16)
BLOCK = 2**20  # weights widened at a time


def fp32_logits(head: Any, hidden_ND: Tensor) -> Tensor:
    """(N, vocabulary) logits of the output layer in fp32; the gradient of the hidden states is rounded as they are.

    `head` is called as a module, wrapped by an adapter or not, because libraries that shard a model hook into that.
    """
    with ExitStack() as stack:
        for linear in head.modules() if isinstance(head, nn.Module) else ():
            if isinstance(linear, nn.Linear) and linear.weight.dtype in HALVES:
                stack.enter_context(_widened(linear))
        logits_NV: Tensor = head(hidden_ND)
    return logits_NV.float()


@contextmanager
def _widened(linear: nn.Linear) -> Iterator[None]:
    own, replaced = linear.forward, "forward" in vars(linear)

    def forward(hidden: Tensor) -> Tensor:
        # Looked at only now: before a sharded layer is called, its weight is empty. A packed 4-bit weight has another
        # shape.
        weight = linear.weight
        if weight.dtype != hidden.dtype or weight.shape != (linear.out_features, linear.in_features):
            return own(hidden)
        logits: Tensor = _Product.apply(hidden, weight)  # type: ignore[no-untyped-call]
        return logits if linear.bias is None else logits + linear.bias

    linear.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        if replaced:
            linear.forward = own  # type: ignore[method-assign]
        else:
            del linear.forward


class _Product(torch.autograd.Function):
    """hidden_ND @ weight_VD.T in fp32. Backwards it is the product of the two in their own type, as everywhere else."""

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        ctx.save_for_backward(hidden_ND, weight_VD)
        if hidden_ND.is_cuda:  # bf16 in, fp32 out, in one product
            return torch.mm(hidden_ND, weight_VD.T, out_dtype=torch.float32)
        return _blocks(hidden_ND, weight_VD)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden_ND, weight_VD = ctx.saved_tensors
        gradient_NV = gradients[0].to(weight_VD.dtype)
        of_hidden, of_weight = ctx.needs_input_grad
        return gradient_NV @ weight_VD if of_hidden else None, gradient_NV.T @ hidden_ND if of_weight else None


def _blocks(hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
    hidden_ND, rows = hidden_ND.float(), max(1, BLOCK // weight_VD.shape[1])
    logits_NV = hidden_ND.new_empty(len(hidden_ND), len(weight_VD))
    for first in range(0, len(weight_VD), rows):
        block = weight_VD[first : first + rows].float()
        torch.mm(hidden_ND, block.T, out=logits_NV[:, first : first + rows])
    return logits_NV


# An adapter's first product


class WideningLinear(nn.Linear):
    """A linear layer without a bias, whose input may be narrower than its weight."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dtype == self.weight.dtype:
            return super().forward(input)
        product: Tensor = _WideProduct.apply(input, self.weight)  # type: ignore[no-untyped-call]
        return product


class _WideProduct(torch.autograd.Function):
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
