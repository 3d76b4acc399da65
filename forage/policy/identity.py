"""Tells whether two folders hold the same base, wherever they lie and whatever they are called.

The digest is over the configuration without its data type, the weights' names and shapes, and some of each weight's
values. Values are rounded to bf16, so that a base stored in fp32 and its copy in bf16 are the same.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from forage.errors import UserError
from forage.policy.base_models import check_folder

# What saving a model again may change in config.json.
INCIDENTAL = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}


def same_base(one: str, other: str, digest: str = "") -> bool:
    """Whether two names stand for the same base. False where one of them is not here to be compared.

    `digest` is what the other's was, where that is known: then even the same folder may hold another base by now.
    """
    here = folder_of(one)
    if here and digest:
        return base_digest(here) == digest
    if one == other or Path(one).resolve() == Path(other).resolve():
        return True
    there = folder_of(other)
    return here is not None and there is not None and base_digest(here) == base_digest(there)


def folder_of(name: str) -> Path | None:
    """A model's folder, or the cached copy of a hub model; None if it isn't here, or not whole."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    folder = Path(name)
    try:
        if not folder.is_dir():
            folder = Path(snapshot_download(name, local_files_only=True))
        check_folder(folder)
    except (UserError, LocalEntryNotFoundError, HFValidationError):
        return None
    return folder


def base_digest(folder: Path) -> str:
    """Example: "b71c9e0a6d3f8452"."""
    config = json.loads((folder / "config.json").read_text())
    digest = hashlib.sha256(json.dumps(architecture(config), sort_keys=True).encode())
    for name, shape, values in sorted(sampled_weights(folder)):
        digest.update(f"{name} {shape} ".encode() + values)
    return digest.hexdigest()[:16]


def architecture(config: Any) -> Any:
    """A configuration without what is incidental, at any depth."""
    if not isinstance(config, dict):
        return config
    return {name: architecture(value) for name, value in config.items() if name not in INCIDENTAL}


def sampled_weights(folder: Path) -> list[tuple[str, list[int], bytes]]:
    """Each weight's name and shape, and the values of its first, middle and last row."""
    found: list[tuple[str, list[int], bytes]] = []
    for file in weight_files(folder):
        try:
            with safe_open(folder / file, "pt") as shard:
                found += [(name, *sampled(shard, name)) for name in shard.offset_keys()]
        except SafetensorError as error:
            raise UserError(f"{folder / file} is damaged ({error}); download it again") from error
    return found


def sampled(shard: Any, name: str) -> tuple[list[int], bytes]:
    part = shard.get_slice(name)
    shape = part.get_shape()
    if len(shape) < 2:
        return shape, as_bytes(shard.get_tensor(name))
    rows = sorted({0, shape[0] // 2, shape[0] - 1} - {-1})
    return shape, b"".join(as_bytes(part[row : row + 1]) for row in rows)


def as_bytes(values: Tensor) -> bytes:
    values = values.to(torch.bfloat16) if values.is_floating_point() else values
    return bytes(values.contiguous().view(torch.uint8).flatten().numpy()) if values.dim() else str(values).encode()


def weight_files(folder: Path) -> tuple[str, ...]:
    """The safetensors files of a model's folder."""
    if (folder / "model.safetensors").is_file():  # transformers, too, takes it before the index
        return ("model.safetensors",)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return tuple(sorted(set(index["weight_map"].values())))
