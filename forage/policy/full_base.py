"""The full-precision base on disk that an adapter is merged into: finds and checks it without reading its weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from forage.errors import UserError
from forage.machine import hub_reachable
from forage.policy.base_models import check_folder, resolve_model
from forage.policy.card import full_base_digest_of, full_base_of
from forage.policy.identity import folder_of, same_base, weight_files
from forage.policy.peft_adapter import Adapter

WEIGHT_ENDINGS = (
    ".safetensors", ".bin", ".gguf", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".onnx", ".index.json",
)  # fmt: skip


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
    name = resolve_model(full_base_of(Path(asked or named)) or asked or named, models_dir)
    folder = Path(name) if Path(name).is_dir() else hub_folder(name)
    refuse_quantized(name, folder)
    if named and not allow_other:
        check_same(name, adapter)
    files = weight_files(folder)
    return FullBase(name, folder, files, weight_shapes(folder, files))


def check_same(name: str, adapter: Adapter) -> None:
    """Refuse a base that is not the adapter's, or that can't be compared with it."""
    named, card = adapter.base_name, adapter.folder.parent.parent  # a policy's or a run's folder, if it lies in one
    digest = full_base_digest_of(card)
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
    full = full_base_of(folder.resolve().parent) or "MODEL, the one it was made from"
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
