"""Products of a bf16 and an fp32 side: the output layer's logits, and what an adapter adds to a layer.

The output layer in fp32: its weight stays in bf16, but its logits are never rounded to bf16.

A logit of 20 in bf16 is a multiple of 1/8. Products of two bf16 numbers are exact in fp32, so only the sum's type has
to change. Where a matrix product can do that itself (CUDA), it costs nothing; elsewhere the weight is widened a few
rows at a time, small enough to stay in the processor's cache.

What an adapter adds, in bf16 as a vLLM server computes it, though its weights are kept in fp32.

PEFT widens the input of each adapted layer to fp32 and computes there; that moves six times as many bytes, more than
the base's own products on a GPU, and autograd keeps every copy. Here the layer's input is kept as it came, which layers
that read the same one share, and the gradients of the adapter's weights are fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
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


# What an adapter adds


def with_adapter(base: Tensor, input: Tensor, first_DR: Tensor, last_RO: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """base + scale * (input @ first) @ last, and input @ first: the same products when sampling and in training."""
    low_NR = input.flatten(0, -2) @ first_DR.to(input.dtype)
    return torch.addmm(base.flatten(0, -2), low_NR, last_RO.to(base.dtype), alpha=scale).view(base.shape), low_NR


class _Adapted(torch.autograd.Function):
    """base + scale * (input @ A.T) @ B.T in the type of `base`."""

    @staticmethod
    def forward(ctx: Any, base: Tensor, input: Tensor, first_RD: Tensor, last_OR: Tensor, scale: float) -> Tensor:
        added, low_NR = with_adapter(base, input, first_RD.T, last_OR.T, scale)
        ctx.save_for_backward(input, low_NR, first_RD, last_OR)
        ctx.scale = scale
        return added

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        input, low_NR, first_RD, last_OR = ctx.saved_tensors
        of_base, of_input, of_first, of_last, _ = ctx.needs_input_grad
        gradient_NO = gradients[0].flatten(0, -2)
        low_gradient_NR = gradient_NO @ (ctx.scale * last_OR).to(gradient_NO.dtype)
        return (
            gradients[0] if of_base else None,
            (low_gradient_NR @ first_RD.to(input.dtype)).view(input.shape) if of_input else None,
            summed(low_gradient_NR.T, input.flatten(0, -2)) if of_first else None,
            summed(gradient_NO.T, low_NR) * ctx.scale if of_last else None,
            None,
        )


def summed(left_MN: Tensor, right_NK: Tensor) -> Tensor:
    """A product whose sums over many rows stay in fp32."""
    if left_MN.is_cuda and left_MN.dtype in HALVES:
        return torch.mm(left_MN, right_NK, out_dtype=torch.float32)
    return left_MN.float() @ right_NK.float()


class Adapted:
    """A linear layer of PEFT's, with `_Adapted` in the place of PEFT's products where one plain adapter is at work.

    Left to PEFT: dropout, which it applies to the widened input, an adapter's bias, and variants such as DoRA.
    """

    def forward(self: Any, x: Tensor, *rest: Any, **named: Any) -> Tensor:
        [name, *others] = self.active_adapters
        plain = name in self.lora_A and not self.lora_variant and not self.lora_bias[name]
        plain = plain and isinstance(self.lora_dropout[name], nn.Identity)
        if rest or named or others or self.disable_adapters or self.merged or not plain:
            return super().forward(x, *rest, **named)  # type: ignore[misc]
        first, last, base = self.lora_A[name].weight, self.lora_B[name].weight, self.base_layer(x)
        # An output layer's logits are wider than what it reads.
        return _Adapted.apply(base, x.to(base.dtype), first, last, self.scaling[name])  # type: ignore[no-untyped-call]


@cache
def adapted(kind: type) -> type:
    return type(kind.__name__, (Adapted, kind), {})


def fuse_adapters(policy: Any) -> None:
    """Let the linear LoRA layers of a PEFT policy compute so."""
    from peft.tuners.lora import LoraLayer

    for module in policy.modules():
        if isinstance(module, LoraLayer) and module.lora_A and not isinstance(module, Adapted):
            module.__class__ = adapted(type(module))
