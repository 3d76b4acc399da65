"""What a LoRA adapter of create_lora_model.py does to the layers of its base, for the engine in this process."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from forage.errors import UserError

Shapes = Mapping[str, tuple[int, ...]]  # a model's weights by name
PART = re.compile(r"base_model\.model\.(.+)\.(lora_A|lora_B|lora_magnitude_vector)(?:\.weight)?")


@dataclass(frozen=True)
class Change:
    """What an adapter does to one weight: lora_A, lora_B and maybe lora_magnitude_vector."""

    parts: dict[str, Tensor]
    scale: float
    transposed: bool
    """The weight is (in, out), as in gpt2's Conv1D."""


def find_changes(folder: Path, base: str, shapes: Shapes, tied_vocabulary: int | None) -> dict[str, Change]:
    """The change to each weight, by its name; an adapter that does more than that is refused.

    `base` names the model in errors; `tied_vocabulary`: its size where input and output share one weight.
    """
    config = json.loads((folder / "adapter_config.json").read_text())
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        match = PART.fullmatch(name)
        if not match or config["rank_pattern"] or config["alpha_pattern"]:
            raise UserError(f"{folder} is no adapter of create_lora_model.py ({name}); start a vLLM server for it")
        parts[f"{match[1]}.weight"][match[2]] = tensor
    if missing := parts.keys() - shapes.keys():
        raise UserError(f"{folder}: {min(missing)} is no weight of {base}; is that its base?")
    if twice := [key for key in parts if shapes[key][0] == tied_vocabulary]:
        raise UserError(f"{folder} changes {twice[0]}, which {base} uses as both input and output")
    # rsLoRA's scale: https://arxiv.org/abs/2312.03732
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config["use_rslora"] else config["r"])
    return {key: Change(each, scale, config["fan_in_fan_out"]) for key, each in parts.items()}


def adding(layer: Any, change: Change) -> Callable[[Any, tuple[Tensor], Tensor], Tensor]:
    """A forward hook that makes the output of a linear layer with weights W that of one with W + sBA.

    The weights stay as they are: rounded to bf16, W + sBA would be W again where an adapter is young. What is added is
    computed in fp32. DoRA rescales the rows of W + sBA to learned magnitudes, https://arxiv.org/abs/2402.09353.
    """
    parts = {name: part.to(layer.weight.device, torch.float32) for name, part in change.parts.items()}
    first_DR, last_RO = parts["lora_A"].T.contiguous(), (change.scale * parts["lora_B"]).T.contiguous()
    factor_O = None
    if "lora_magnitude_vector" in parts:
        factor_O = parts["lora_magnitude_vector"] / row_norms(layer, first_DR @ last_RO, change.transposed)
        last_RO *= factor_O

    def add(_: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        low_NR = inputs[0].flatten(0, -2).float() @ first_DR
        if output.dtype == torch.float32 and factor_O is None:
            output.flatten(0, -2).addmm_(low_NR, last_RO)  # in place, which is faster; in bf16 it would round more
            return output
        added = (low_NR @ last_RO).view(output.shape)
        if factor_O is not None:
            added += (factor_O - 1) * (output if layer.bias is None else output - layer.bias)
        return output.add_(added)

    return add


def row_norms(layer: Any, change_DO: Tensor, transposed: bool) -> Tensor:
    """(O,) lengths of the rows of a linear layer's changed weights, 4-bit ones unpacked."""
    from peft.utils.integrations import dequantize_module_weight

    weight: Tensor = dequantize_module_weight(layer).float()
    lengths_O: Tensor = torch.linalg.norm((weight if transposed else weight.T) + change_DO, dim=0)
    return lengths_O
