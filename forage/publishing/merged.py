"""Merges an adapter into its full base by PEFT, giving one plain checkpoint, and proves the merge.

The merged folder has to predict what base + adapter predicts, on fixed texts. Both are loaded in fp32, one after the
other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forage.errors import UserError, first_line
from forage.files import check_apart, check_replaceable
from forage.machine import hub_reachable
from forage.policy.adapters import newest_adapter, versions
from forage.policy.base_models import check_folder, folder_of, resolve_model, same_base
from forage.policy.manifest import full_base_of

WEIGHT_ENDINGS = (
    ".safetensors", ".bin", ".gguf", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".onnx", ".index.json",
)  # fmt: skip
CARD_MARK = "merged into its base by `merge_lora.py`"  # a line of each merged model's card
# Beside the base's own files.
WRITTEN = ("agent.json", "chat_template.jinja", "config.json", "generation_config.json", "model*.safetensors*")


def find_adapter(folder: Path) -> Path:
    """The folder itself if it holds an adapter, else its newest version under adapters/."""
    if (folder / "adapter_config.json").is_file():
        return folder
    if not versions(folder):
        raise UserError(f"{folder} has neither adapter_config.json nor adapters/v000000; name an adapter's folder")
    print(f"adapter: {newest_adapter(folder)}, the newest of {len(versions(folder))}")
    return newest_adapter(folder)


def adapter_config(adapter: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text())
    return config


def find_base(asked: str, adapter: Path, models_dir: Path, *, allow_other: bool = False) -> tuple[str, Path]:
    """Name and folder of the base that the user asked for, or else of the one that the adapter names.

    Refuses a base other than the adapter's, unless `allow_other`.
    """
    named = adapter_config(adapter).get("base_model_name_or_path") or ""
    if not (asked or named):
        raise UserError(f"{adapter} names no base; name one with --base-model")
    name = resolve_model(full_base_of(Path(asked or named))[0] or asked or named, models_dir)
    folder = Path(name) if Path(name).is_dir() else hub_folder(name)
    if "quantization_config" in json.loads((folder / "config.json").read_text()):
        # A 4-bit base made by create_lora_model.py lies inside its policy folder.
        full = full_base_of(folder.resolve().parent)[0] or "MODEL, the one it was made from"
        raise UserError(f"{name} is quantised; merge into its full base: --base-model {full}")
    if named and not allow_other:
        check_same(name, adapter, named)
    return name, folder


def check_same(name: str, adapter: Path, named: str) -> None:
    """Refuse a base that is not the adapter's, or that can't be compared with it."""
    digest = full_base_of(adapter.parent.parent)[1]  # a policy's or a run's folder, if it lies in one
    if same_base(name, named, digest):
        return
    if digest or folder_of(named):
        raise UserError(
            f"{adapter} was made for {named}, and {name} has other weights than that had; "
            "give --base-model a copy of the one it was made for"
        )
    raise UserError(
        f"{adapter} was made for {named}, which is not here to be compared with {name}; "
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


def other_files(base: Path) -> Iterator[Path]:
    """Everything but weights and model card: tokenizer, chat templates, settings, licence."""
    for path in sorted([*base.iterdir(), *base.glob("additional_chat_templates/*")]):
        skipped = path.name.startswith(".") or path.name == "README.md" or path.name.endswith(WEIGHT_ENDINGS)
        if path.is_file() and not skipped:
            yield path


def check_output(output: Path, adapter: Path, base: Path) -> None:
    """Refuse an output that would replace its own sources, or what is not a merged model."""
    for source in (base, adapter):
        check_apart("--output-path", output, {"the base or adapter": source})
    if output.exists():
        card = output / "README.md"
        if not (card.is_file() and CARD_MARK in card.read_text(encoding="utf-8", errors="replace")):
            raise UserError(f"--output-path {output} was not made by merge_lora.py; choose another --output-path")
        written = {path.relative_to(base).parts[0] for path in other_files(base)} | {*WRITTEN}
        check_replaceable("--output-path", output, "README.md", written)


# Writing


def write_merged(base: Path, adapter: Path, folder: Path, dtype: str, texts: Sequence[Tensor]) -> Proof | None:
    """The base's files, and its weights with the adapter merged into them in fp32 and rounded once.

    Returns how well that is base + adapter, on some texts if there are any.
    """
    from transformers import AutoModelForCausalLM

    for path in other_files(base):
        target = folder / path.relative_to(base)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    policy = load(base, adapter)
    wanted = text_logprobs(policy, texts)
    with policy.disable_adapter():
        plain = text_logprobs(policy, texts)
    merged = policy.merge_and_unload().to(getattr(torch, dtype))
    merged.save_pretrained(folder)
    del policy, merged  # before the next model is loaded
    if not texts:
        return None
    found = text_logprobs(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), texts)
    return compare(torch.cat(plain), torch.cat(wanted), torch.cat(found))


def load(base: Path, adapter: Path) -> Any:
    """Base + adapter in fp32."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        full = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        return PeftModel.from_pretrained(full, str(adapter))
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{adapter} can't be loaded over {base} ({first_line(error)}); are they for each other?"
        ) from error


# The proof


# About twice the largest mean difference that rounding alone made on SmolLM2-135M: 0.026, 0.003, 0.000012 (r 16, alpha
# 32 on every linear layer, B of std 0.002 to 0.05, LoRA and DoRA). At std 0.02, half the scale made 0.17, twice the
# scale 0.36.
TOLERANCES = {"bfloat16": 0.05, "float16": 0.006, "float32": 1e-4}
TEXTS = (
    "Asthma is a long-term disease in which the airways of the lungs become inflamed and narrow.",
    "A person with type 1 diabetes makes little or no insulin, so that sugar stays in the blood.",
    "Question: What are the symptoms of gout?\nAnswer: Sudden, severe pain in a joint, often the big toe.",
    "The capital of France is Paris, which lies on the Seine.",
    '<tool_call>{"name": "search", "arguments": {"query": "treatment of iron deficiency"}}</tool_call>',
    "def square(number):\n    return number * number\n",
)


@dataclass(frozen=True)
class Proof:
    """Log-probabilities of the merged model compared with those of base + adapter, over the whole vocabulary."""

    positions: int
    mean: float
    effect: float
    """Mean difference between base + adapter and the base alone."""
    carried: float
    """How much of that effect the merged model has: 1 is all of it, 0 is a base without its adapter."""

    def __str__(self) -> str:
        return (
            f"log-probabilities at {self.positions} positions differ by {self.mean:.2g} on average; the adapter moves "
            f"them by {self.effect:.2g}, and the merged model has {self.carried:.1%} of that effect"
        )


def proof_texts(folder: Path) -> list[Tensor]:
    """The fixed texts' tokens, by a model's tokenizer."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            "the base has no tokenizer that can be loaded, which the proof needs; skip it with --no-prove"
        ) from error
    return [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]


def compare(base_NV: Tensor, wanted_NV: Tensor, merged_NV: Tensor) -> Proof:
    """Log-probabilities of the base alone, of base + adapter, and of the merged model."""
    apart_NV = (merged_NV - wanted_NV).abs()
    effect_NV = wanted_NV - base_NV
    # Rounding errors point anywhere, a wrong scale along the effect: the projection onto the effect finds a wrong scale
    # even where the tolerance is larger than the effect.
    carried = float((effect_NV * (merged_NV - base_NV)).sum() / effect_NV.square().sum()) if effect_NV.any() else 1.0
    return Proof(len(apart_NV), float(apart_NV.mean()), float(effect_NV.abs().mean()), carried)


def check(proof: Proof, dtype: str) -> None:
    """Refuse a wrong merge."""
    if not proof.mean <= TOLERANCES[dtype]:  # written this way so that NaN is refused too
        raise UserError(
            f"the merged model is not base + adapter: mean difference {proof.mean:.2g}, over {TOLERANCES[dtype]}; "
            "--no-prove keeps it all the same"
        )
    # An effect below the resolution of fp32 can't be measured. At B of std 0.0002 bfloat16 keeps 58 % of it.
    if proof.effect > TOLERANCES["float32"] and not 0.5 < proof.carried < 1.5:
        raise UserError(
            f"the merged model has {proof.carried:.0%} of the adapter's effect: the merge is wrong, or {dtype} is too "
            "coarse for so small an adapter (try --dtype float32)"
        )


@torch.no_grad()
def text_logprobs(model: Any, texts: Sequence[Tensor]) -> list[Tensor]:
    """(positions, vocabulary) of each text."""
    return [model(input_ids=ids_1T).logits[0].float().log_softmax(-1) for ids_1T in texts]
