"""Merges an adapter into its full base on the disk, one weight file at a time, giving one plain checkpoint."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from forage.errors import UserError, first_line
from forage.machine import hub_reachable
from forage.outputs import check_apart, check_replaceable
from forage.policy.base_models import check_folder, folder_of, resolve_model, same_base, weight_files
from forage.policy.card import full_base_of
from forage.policy.lora import Adapter, Change, merge, tied_vocabulary

WEIGHT_ENDINGS = (
    ".safetensors", ".bin", ".gguf", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".onnx", ".index.json",
)  # fmt: skip
CARD_MARK = "merged into its base by `merge_lora.py`"  # a line of each merged model's card
# Beside the base's own files.
WRITTEN = ("agent.json", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors.index.json")


@dataclass(frozen=True)
class FullBase:
    """A model's folder: its weight files, and the shapes of the weights in them."""

    name: str
    """The name it was given: a hub name or a folder."""
    folder: Path
    files: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]


def find_base(asked: str, adapter: Adapter, models_dir: Path, *, allow_other: bool = False) -> FullBase:
    """The base that the user asked for, or else the one that the adapter names.

    Refuses a base other than the adapter's, unless `allow_other`.
    """
    named = adapter.base_name
    if not (asked or named):
        raise UserError(f"{adapter.folder} names no base; name one with --base-model")
    name = resolve_model(full_base_of(Path(asked or named))[0] or asked or named, models_dir)
    folder = Path(name) if Path(name).is_dir() else hub_folder(name)
    refuse_quantized(name, folder)
    if named and not allow_other:
        check_same(name, adapter)
    files = weight_files(folder)
    return FullBase(name, folder, files, weight_shapes(folder, files))


def check_same(name: str, adapter: Adapter) -> None:
    """Refuse a base that is not the adapter's, or that can't be compared with it."""
    named = adapter.base_name
    digest = full_base_of(adapter.folder.parent.parent)[1]  # a policy's or a run's folder, if it lies in one
    if same_base(name, named, digest):
        return
    if digest or folder_of(named):
        raise UserError(
            f"{adapter.folder} was made for {named}, and {name} has other weights than that had; "
            "give --base-model a copy of the one it was made for"
        )
    raise UserError(
        f"{adapter.folder} was made for {named}, which is not here to be compared with {name}; "
        "add --allow-other-base if they are the same"
    )


def hub_folder(name: str) -> Path:
    """The hub's cached copy of a model, downloaded first if it isn't complete."""
    from huggingface_hub import snapshot_download

    folder = folder_of(name)
    if folder is None:
        if not hub_reachable():
            raise UserError(f"model {name!r} is not complete in the cache, and the hub can't be reached")
        folder = Path(snapshot_download(name, ignore_patterns=[f"*{ending}" for ending in WEIGHT_ENDINGS[1:-1]]))
        check_folder(folder)
    return folder


def refuse_quantized(name: str, folder: Path) -> None:
    if "quantization_config" not in json.loads((folder / "config.json").read_text()):
        return
    # A 4-bit base made by create_lora_model.py lies inside its policy folder.
    full = full_base_of(folder.resolve().parent)[0] or "MODEL, the one it was made from"
    raise UserError(f"{name} is quantised; merge into its full base: --base-model {full}")


def weight_shapes(folder: Path, files: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            with safe_open(folder / file, "pt") as shard:
                shapes |= {key: tuple(shard.get_slice(key).get_shape()) for key in shard.offset_keys()}
        except SafetensorError as error:
            raise UserError(f"{folder / file} is damaged ({error}); download it again") from error
    return shapes


def other_files(base: FullBase) -> Iterator[Path]:
    """Everything but weights and model card: tokenizer, chat templates, settings, licence."""
    for path in sorted([*base.folder.iterdir(), *base.folder.glob("additional_chat_templates/*")]):
        skipped = path.name.startswith(".") or path.name == "README.md" or path.name.endswith(WEIGHT_ENDINGS)
        if path.is_file() and not skipped:
            yield path


def tied_vocabulary_of(base: FullBase) -> int | None:
    """The vocabulary's size where input and output share one weight, else None."""
    from transformers import AutoConfig

    try:
        text = AutoConfig.from_pretrained(base.folder).get_text_config()
    except (OSError, ValueError) as error:
        raise UserError(f"{base.folder}/config.json is not supported here ({first_line(error)})") from error
    return tied_vocabulary(text)


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
