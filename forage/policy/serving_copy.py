"""Copies of a 4-bit base that a vLLM server can serve, written shard by shard.

    bf16, fp32   unpacked to the type that the policy is computed in: bit for bit what the trainer multiplies by
    nf4          the same bytes called uint8, for bases of earlier versions, which called them bf16, as vLLM can't read

A copy's serving.json names the digest of the base it was made from and its own, so that it passes for that base and for
no other.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from forage.errors import UserError
from forage.library_noise import silence_library_noise
from forage.outputs import check_replaceable
from forage.policy.four_bit import viewed
from forage.policy.full_base import WEIGHT_ENDINGS
from forage.policy.identity import base_digest, weight_files
from forage.sole_writer import making_folder

CARD = "serving.json"
NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.uint8: "nf4"}  # of copies, by the type of their weights
STATE = ".quant_state.bitsandbytes__"  # in the name of the tensor that describes a packed weight
SHARD_BYTES = 2 << 30


# Copies and what they were made from


def stored_as(base: Path) -> str:
    """The type that a 4-bit base's bytes are called on the disk."""
    settings = json.loads((base / "config.json").read_text())["quantization_config"]
    return str(settings.get("bnb_4bit_quant_storage") or "uint8")


def is_copy_of(folder: Path, base: Path) -> bool:
    """Whether a folder is a copy of this 4-bit base, and still what was written."""
    card = folder / CARD
    if not card.is_file() or not base.is_dir():
        return False
    try:
        made = json.loads(card.read_text())
        return bool(made["made_from"] == base_digest(base) and made["digest"] == base_digest(folder))
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise UserError(f"{folder} is damaged ({error}); remove it, and make it again") from error


def keep_copy(base: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write a base's copy unless it is there already; one of another base is replaced."""
    check_replaceable("link", folder, CARD)
    if is_copy_of(folder, base):
        return
    made_from = base_digest(base)
    with ExitStack() as opened:
        packed = PackedBase(base, opened)
        check_room(folder, packed, dtype)
        with making_folder(folder, overwrite=True) as partial:
            packed.write(partial, dtype)
            card = {"made_from": made_from, "digest": base_digest(partial), "weights": NAMES[dtype]}
            (partial / CARD).write_text(json.dumps(card, indent=1) + "\n")


def check_room(folder: Path, base: PackedBase, dtype: torch.dtype) -> None:
    needs = sum(base.sizes(dtype).values()) + sum(path.stat().st_size for path in base.other_files())
    parent = next(path for path in folder.absolute().parents if path.exists())
    has = shutil.disk_usage(parent).free
    if needs > has:
        way_out = "free some, or give --serve nf4" if dtype != torch.uint8 else "free some"
        raise UserError(
            f"{parent} has {has / 2**20:,.0f} MiB free, but {folder.name} needs {needs / 2**20:,.0f}; {way_out}"
        )


# Reading a 4-bit base, and writing it in another form


class PackedBase:
    """A 4-bit base's files, open: its packed weights with their scales, other weights, and everything else."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        silence_library_noise()
        from bitsandbytes import utils

        unpack: Any = utils.unpack_tensor_to_dict
        self.folder = folder
        self.shards: dict[str, Any] = {}  # the file of each tensor
        self.bytes: dict[str, int] = {}
        for file in weight_files(folder):
            shard = opened.enter_context(safe_open(folder / file, "pt"))
            for name, tensor in header(folder / file).items():
                first, end = tensor["data_offsets"]
                self.shards[name], self.bytes[name] = shard, end - first
        states = {name.partition(STATE)[0]: name for name in self.shards if STATE in name}
        self.scales = {weight: [n for n in self.shards if n.startswith(f"{weight}.")] for weight in states}
        self.shapes = {weight: unpack(self.read(state))["shape"] for weight, state in states.items()}

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self.shards[name].get_tensor(name)
        return tensor

    def sizes(self, dtype: torch.dtype) -> dict[str, int]:
        """Bytes of each of the copy's tensors; unpacked weights have no scales."""
        if dtype == torch.uint8:
            return self.bytes
        scales = {scale for found in self.scales.values() for scale in found}
        unpacked = {weight: dtype.itemsize * math.prod(shape) for weight, shape in self.shapes.items()}
        return {name: unpacked.get(name, size) for name, size in self.bytes.items() if name not in scales}

    def converted(self, name: str, dtype: torch.dtype) -> Tensor:
        if name not in self.scales:
            return self.read(name)
        return viewed(self.read(name), dtype) if dtype == torch.uint8 else self.unpacked(name, dtype)

    def unpacked(self, weight: str, dtype: torch.dtype) -> Tensor:
        """A weight as bitsandbytes unpacks it for a product in this type, on the trainer's kind of device."""
        from bitsandbytes.functional import QuantState, dequantize_4bit

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        state = QuantState.from_dict({name: self.read(name) for name in self.scales[weight]}, device)
        state.dtype = dtype
        return dequantize_4bit(self.read(weight).to(device), state).cpu()

    def other_files(self) -> Iterator[Path]:
        """Tokenizer, chat templates, settings; the config is written anew."""
        for path in sorted([*self.folder.iterdir(), *self.folder.glob("additional_chat_templates/*")]):
            skipped = path.name.startswith(".") or path.name == "config.json" or path.name.endswith(WEIGHT_ENDINGS)
            if path.is_file() and not skipped:
                yield path

    def write(self, folder: Path, dtype: torch.dtype) -> None:
        for path in self.other_files():
            target = folder / path.relative_to(self.folder)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
        config = config_for(dtype, json.loads((self.folder / "config.json").read_text()))
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        sizes = self.sizes(dtype)
        shards = in_shards(sizes)
        files = {shard_name(number, len(shards)): names for number, names in enumerate(shards, 1)}
        for file, names in files.items():
            tensors = {name: self.converted(name, dtype).contiguous() for name in names}
            save_file(tensors, folder / file, metadata={"format": "pt"})
        if len(shards) > 1:
            places = {name: file for file, names in files.items() for name in names}
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def header(file: Path) -> dict[str, dict[str, Any]]:
    """What a safetensors file says of its tensors."""
    with file.open("rb") as opened:
        found: dict[str, dict[str, Any]] = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    found.pop("__metadata__", None)
    return found


def in_shards(sizes: dict[str, int]) -> list[list[str]]:
    """Tensors in order, as many to a file as fit; at most one file of them is in memory."""
    shards: list[list[str]] = [[]]
    held = 0
    for name, size in sizes.items():
        if held + size > SHARD_BYTES and shards[-1]:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += size
    return shards


def shard_name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"


def config_for(dtype: torch.dtype, config: dict[str, Any]) -> dict[str, Any]:
    if dtype != torch.uint8:
        rest = {name: value for name, value in config.items() if name != "quantization_config"}
        return rest | {"dtype": str(dtype).removeprefix("torch.")}
    stored = config["quantization_config"] | {"bnb_4bit_quant_storage": "uint8"}
    return config | {"quantization_config": stored}
