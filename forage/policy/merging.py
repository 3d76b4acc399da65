"""Merges a PEFT adapter into the weights of its full base, one weight file at a time."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from forage.errors import UserError, first_line
from forage.library_noise import silence_library_noise
from forage.outputs import check_apart, check_replaceable
from forage.policy.full_base import FullBase, other_files
from forage.policy.peft_adapter import Adapter

Shapes = Mapping[str, tuple[int, ...]]  # a model's weights by name
CARD_MARK = "merged into its base by `merge_lora.py`"  # a line of each merged model's card
# Beside the base's own files.
WRITTEN = ("agent.json", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors.index.json")


@dataclass(frozen=True)
class Change:
    """What an adapter does to one weight: lora_A, lora_B and maybe lora_magnitude_vector, or the whole saved weight."""

    parts: dict[str, Tensor]
    scale: float = 1.0
    transposed: bool = False
    """The weight is (in, out), as in gpt2's Conv1D."""


# What changes


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


def tied_vocabulary_of(base: FullBase) -> int | None:
    """The vocabulary's size where input and output share one weight, else None."""
    from transformers import AutoConfig

    try:
        text = AutoConfig.from_pretrained(base.folder).get_text_config()
    except (OSError, ValueError) as error:
        raise UserError(f"{base.folder}/config.json is not supported here ({first_line(error)})") from error
    return tied_vocabulary(text)


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
    silence_library_noise()
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


# Writing


def check_output(output_path: Path, dtype: str, adapter: Adapter, base: FullBase) -> None:
    """Refuse an output that would replace its own sources, or a disk without enough room."""
    output, size = output_path.resolve(), getattr(torch, dtype).itemsize
    for source in (base.folder.resolve(), adapter.folder.resolve()):
        check_apart("--output-path", output_path, {"the base or adapter": source})
    if output.exists():
        card = output / "README.md"
        if not (card.is_file() and CARD_MARK in card.read_text(encoding="utf-8", errors="replace")):
            raise UserError(f"--output-path {output_path} was not made by merge_lora.py; choose another --output-path")
        written = {path.relative_to(base.folder).parts[0] for path in other_files(base)} | {*base.files, *WRITTEN}
        check_replaceable("--output-path", output, "README.md", written)
    output.parent.mkdir(parents=True, exist_ok=True)
    needs = size * sum(map(math.prod, base.shapes.values())) + sum(file.stat().st_size for file in other_files(base))
    has = shutil.disk_usage(output.parent).free
    if needs > has:
        raise UserError(
            f"{output.parent} has {has / 2**20:,.0f} MiB free, but {needs / 2**20:,.0f} MiB are needed; free some"
        )


def write_merged(base: FullBase, changes: dict[str, Change], folder: Path, dtype: str) -> None:
    """The base's files under their own names, its weights merged and in the given type."""
    for path in other_files(base):
        target = folder / path.relative_to(base.folder)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    config = json.loads((base.folder / "config.json").read_text())
    config |= dict.fromkeys(("dtype", "torch_dtype") if "torch_dtype" in config else ("dtype",), dtype)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    written = sum(write_shard(base.folder / file, changes, folder / file, dtype) for file in base.files)
    if base.files != ("model.safetensors",):
        index = json.loads((base.folder / "model.safetensors.index.json").read_text())
        index["metadata"] = index.get("metadata", {}) | {"total_size": written}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write_shard(source: Path, changes: dict[str, Change], target: Path, dtype: str) -> int:
    """Merge one weight file and return the bytes of its tensors. None of it stays in memory."""
    tensors = {}
    with safe_open(source, "pt") as shard:
        for key in shard.offset_keys():
            tensor = shard.get_tensor(key)
            tensor = merge(tensor, changes[key]) if key in changes else tensor
            tensors[key] = tensor.to(getattr(torch, dtype) if tensor.is_floating_point() else tensor.dtype).contiguous()
    save_file(tensors, target, metadata={"format": "pt"})
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
