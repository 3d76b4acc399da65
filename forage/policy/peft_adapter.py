"""Reads LoRA adapters that PEFT saved, of the kinds that merging.py can merge."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from forage.errors import UserError

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
