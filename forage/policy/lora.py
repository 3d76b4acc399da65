"""What a LoRA adapter of create_lora_model.py does to the weights of its base, for the engine that merges it."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


def merge(weight: Tensor, change: Change) -> Tensor:
    """W + sBA in fp32; DoRA rescales its rows to the learned magnitudes, https://arxiv.org/abs/2402.09353."""
    parts = {name: part.to(weight.device, torch.float32) for name, part in change.parts.items()}
    weight_OI = weight.float().T if change.transposed else weight.float()
    weight_OI = torch.addmm(weight_OI, change.scale * parts["lora_B"], parts["lora_A"])
    if "lora_magnitude_vector" in parts:
        weight_OI *= (parts["lora_magnitude_vector"] / torch.linalg.norm(weight_OI, dim=1))[:, None]
    return weight_OI.T if change.transposed else weight_OI
