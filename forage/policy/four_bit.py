"""4-bit weights as bitsandbytes packs them: bytes, which are viewed as bf16 numbers where something shards them.

Bytes are what every tool reads. FSDP2 and ZeRO-3 want weights of one type, so there the same bytes are called bf16.
They are never cast: a cast changes bytes that are NaN in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from forage.errors import UserError


def packed_layers(model: nn.Module) -> Iterator[Any]:
    """The layers whose weight is packed."""
    for layer in model.modules():
        weight = dict(layer.named_parameters(recurse=False)).get("weight")
        if getattr(weight, "quant_state", None) is not None:
            yield layer


def store_as(model: nn.Module, dtype: torch.dtype) -> None:
    """Call the packed bytes uint8 or bf16, whatever policies of earlier versions stored them as."""
    for layer in packed_layers(model):
        if layer.weight.dtype != dtype:
            layer.weight.data = viewed(layer.weight.data, dtype)
            layer.weight.quant_storage = layer.quant_storage = dtype


def unpack_to(model: nn.Module, dtype: torch.dtype) -> None:
    """Unpack weights to this type everywhere.

    bitsandbytes unpacks to the type of the input in the forward pass, but in the backward pass, and for good, to the
    type that was quantised. If that rounds more, they would not be the same weights.
    """
    for layer in packed_layers(model):
        layer.weight.quant_state.dtype = dtype


def viewed(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bytes as numbers of another type, in a column, as bitsandbytes lays them out."""
    size = packed.numel() * packed.element_size()
    if size % dtype.itemsize:
        raise UserError(
            f"a 4-bit weight of {size} bytes can't be sharded as bf16; give --sharding zero2, or none, or make the "
            "policy with --no-quantize"
        )
    return packed.reshape(-1).view(dtype).view(-1, 1)


def move_scales(model: nn.Module, device: torch.device) -> None:
    """Bring what unpacks the weights to a device. Moving a weight's data alone leaves its scales behind."""
    for layer in packed_layers(model):
        for state in (layer.weight.quant_state, layer.quant_state):  # sharding may take the weight's, not the layer's
            state.to(device)
