"""LoRA adapters that PEFT saved: read, and what each does to the weights of its base."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from forage.errors import UserError

Shapes = Mapping[str, tuple[int, ...]]  # a model's weights by name
# Adapter settings that do more than add to a weight, or add to something other than a linear layer.
NOT_MERGED = (
    "lora_bias", "target_parameters", "layer_replication", "alora_invocation_tokens", "trainable_token_indices",
    "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config", "lora_ga_config",
)  # fmt: skip


@dataclass(frozen=True)
class Adapter:
    """A PEFT adapter; its tensors are named after their modules in the model."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def base_name(self) -> str:
        """The base it names; empty if it names none."""
        return self.config.get("base_model_name_or_path") or ""


def find_adapter(folder: Path) -> Path:
    """The folder itself if it holds an adapter, else its newest version under adapters/."""
    if (folder / "adapter_config.json").is_file():
        return folder
    found = [path.parent for path in folder.glob("adapters/v*/adapter_config.json")]
    if not found:
        raise UserError(f"{folder} has neither adapter_config.json nor adapters/v000000; name an adapter's folder")
    newest = max(found, key=lambda path: (len(path.name), path.name))
    print(f"adapter: {newest}, the newest of {len(found)}")
    return newest


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter; refuse one that does more than add to the weights of linear layers."""
    config = json.loads((folder / "adapter_config.json").read_text())
    try:
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}/adapter_model.safetensors can't be read ({error}); get the adapter again") from error
    unknown = [name for name in NOT_MERGED if config.get(name)] + [name for name in tensors if "lora_embedding" in name]
    if config.get("peft_type") != "LORA" or unknown or config.get("bias", "none") != "none":
        what = unknown[0] if unknown else f"peft_type {config.get('peft_type')}, bias {config.get('bias')}"
        raise UserError(f"{folder} has {what}, which can't be merged here; try PEFT's merge_and_unload")
    first = config.get("init_lora_weights", True)
    if isinstance(first, str) and first not in ("gaussian", "eva", "orthogonal"):
        raise UserError(
            f"{folder} has init_lora_weights {first}, which changes the base too; convert it to a plain LoRA"
        )
    return Adapter(folder, config, {name.removeprefix("base_model.model."): tensors[name] for name in tensors})


# What changes


@dataclass(frozen=True)
class Change:
    """What an adapter does to one weight: lora_A, lora_B and maybe lora_magnitude_vector, or the whole saved weight."""

    parts: dict[str, Tensor]
    scale: float = 1.0
    transposed: bool = False
    """The weight is (in, out), as in gpt2's Conv1D."""


def find_changes(adapter: Adapter, base: str, shapes: Shapes, tied_vocabulary: int | None) -> dict[str, Change]:
    """The change to each weight that the adapter affects. Every tensor of the adapter must be used, and fit.

    `base` names the model in errors; `tied_vocabulary`: its size where input and output share one weight.
    """
    changes = {}
    for key, (module, parts) in parts_by_weight(adapter, base, shapes).items():
        change, shape = find_change(adapter.config, module, parts)
        if shape != shapes[key]:
            raise UserError(f"{key} is {shape} in {adapter.folder}, but {shapes[key]} in {base}")
        if shape[0] == tied_vocabulary:
            raise UserError(f"{adapter.folder} changes {key}, which {base} uses as both input and output")
        changes[key] = change
    if not changes:
        raise UserError(f"{adapter.folder} holds no tensor; get the adapter again")
    return changes


def parts_by_weight(adapter: Adapter, base: str, shapes: Shapes) -> dict[str, tuple[str, dict[str, Tensor]]]:
    """The adapter's tensors by the weight of the base that they belong to, with the name of its module.

    Example: m.q_proj.lora_A.weight and m.q_proj.lora_B.weight give {"m.q_proj.weight": ("m.q_proj", {"lora_A": ...,
    "lora_B": ...})}.
    """
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    modules: dict[str, str] = {}
    for name, tensor in adapter.tensors.items():
        match = re.fullmatch(r"(.+)\.(lora_A|lora_B|lora_magnitude_vector)(\.weight)?", name)
        module, part = (match[1], match[2]) if match else (name.rpartition(".")[0], "saved")
        key = f"{module}.weight" if match else name
        # Some files, such as gpt2's on the hub, leave out the first part of a weight's name.
        key = key if key in shapes else key.partition(".")[2]
        if key not in shapes:
            raise UserError(f"{adapter.folder}: {name} matches no weight of {base}; is that its base?")
        parts[key][part], modules[key] = tensor, module
    return {key: (modules[key], found) for key, found in parts.items()}


def tied_vocabulary(text_config: Any) -> int | None:
    return int(text_config.vocab_size) if getattr(text_config, "tie_word_embeddings", False) else None


def find_change(config: dict[str, Any], module: str, parts: dict[str, Tensor]) -> tuple[Change, tuple[int, ...]]:
    """A weight's change, and the shape of the weight that it fits."""
    if set(parts) == {"saved"}:
        return Change(parts), tuple(parts["saved"].shape)
    wanted = {"lora_A", "lora_B"} | ({"lora_magnitude_vector"} if config.get("use_dora") else set())
    odd = sorted(wanted ^ set(parts))
    if odd:
        raise UserError(f"the adapter's {module} {'lacks' if odd[0] in wanted else 'has an unused'} {odd[0]}")
    if not parts["lora_A"].shape[0] == parts["lora_B"].shape[1] == lora_rank(config, module):
        raise UserError(f"the adapter's {module} is not of rank {lora_rank(config, module)}, as its config says")
    change = Change(parts, lora_scale(config, module), bool(config.get("fan_in_fan_out")))
    shape = (parts["lora_B"].shape[0], parts["lora_A"].shape[1])
    return change, shape[::-1] if change.transposed else shape


def lora_rank(config: dict[str, Any], module: str) -> int:
    return int(module_setting(config, "rank_pattern", module, config["r"]))


def lora_scale(config: dict[str, Any], module: str) -> float:
    """alpha / r, or alpha / sqrt(r) with rsLoRA, https://arxiv.org/abs/2312.03732. A module may have its own two."""
    alpha, r = module_setting(config, "alpha_pattern", module, config["lora_alpha"]), lora_rank(config, module)
    return float(alpha / (math.sqrt(r) if config.get("use_rslora") else r))


def module_setting(config: dict[str, Any], patterns_name: str, module: str, default: float) -> float:
    """The value for one module: that of the first pattern that matches its name, else the default."""
    from peft.utils.other import get_pattern_key

    patterns: dict[str, float] = config.get(patterns_name) or {}
    return patterns.get(get_pattern_key(list(patterns), module), default)


def merge(weight: Tensor, change: Change) -> Tensor:
    """W + sBA in fp32; DoRA rescales its rows to the learned magnitudes, https://arxiv.org/abs/2402.09353."""
    parts = {name: part.to(weight.device, torch.float32) for name, part in change.parts.items()}
    if "saved" in parts:
        return parts["saved"]
    weight_OI = weight.float().T if change.transposed else weight.float()
    weight_OI = torch.addmm(weight_OI, change.scale * parts["lora_B"], parts["lora_A"])
    if "lora_magnitude_vector" in parts:
        weight_OI *= (parts["lora_magnitude_vector"] / torch.linalg.norm(weight_OI, dim=1))[:, None]
    return weight_OI.T if change.transposed else weight_OI
