"""Policy: a base model with a LoRA adapter, out of a folder that create_lora_model.py or sft_train.py made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from forage.errors import UserError
from forage.files import replacing
from forage.machine import Dtype, compute_dtype
from forage.policy.adapters import newest_adapter


@dataclass(frozen=True)
class PolicyCard:
    """What model.json says: which base is loaded and computed in what, and the full-precision base it stems from."""

    folder: Path
    base: str
    full_base: str
    quantized: bool
    dtype: Dtype = "auto"


def read_policy_card(folder: Path) -> PolicyCard:
    path = folder / "model.json"
    if not path.is_file():
        raise UserError(f"{folder} has no model.json; make a policy with create_lora_model.py --output-dir {folder}")
    try:
        card = json.loads(path.read_text())
        base, full_base, quantized = card["base"], card["full_base"], card["quantized"]
        dtype = card.get("dtype", "auto")  # which older policies lack
        if dtype not in get_args(Dtype):
            raise ValueError(f"dtype {dtype}")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); make the policy again") from error
    base = str(folder / base) if quantized else base  # a 4-bit base lies inside
    if (quantized or Path(base).is_absolute()) and not Path(base).is_dir():
        raise UserError(f"{path} names the base {base}, which is gone; make the policy again")
    return PolicyCard(folder, base, full_base, quantized, dtype)


def write_policy_card(card: PolicyCard, folder: Path) -> None:
    """The same base for another folder of adapters; a 4-bit base is named where it lies."""
    base = str(Path(card.base).resolve()) if card.quantized else card.base
    told = {"base": base, "full_base": card.full_base, "quantized": card.quantized, "dtype": card.dtype}
    with replacing(folder / "model.json") as file:
        json.dump(told, file, indent=1)
        file.write("\n")


def load_tokenizer(card: PolicyCard) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(card.base)


def load_base(card: PolicyCard, *, dequantize: bool = False, device: str = "auto") -> Any:
    """The base as it is trained on; `dequantize` unpacks 4-bit weights, so that an adapter can be merged into them.

    auto: this process's GPU, where there is one.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    dtype, config = compute_dtype(card.dtype), AutoConfig.from_pretrained(card.base)
    if card.quantized:
        config.quantization_config["bnb_4bit_compute_dtype"] = str(dtype).removeprefix("torch.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(card.base, config=config, dtype=dtype, device_map=device)
    if card.quantized and dequantize:
        return model.dequantize().to(dtype)
    if card.quantized:
        keep_trainable(model)
    return model


def keep_trainable(model: Any) -> None:
    """On processors with bf16 units bitsandbytes packs 4-bit weights anew at the first pass without gradients, and what
    is packed so has no gradient: a policy that was measured would then be trained by wrong ones, silently."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def load_policy(card: PolicyCard, adapter: Path | None = None, device: str = "auto") -> Any:
    """Base and adapter (the newest, if none is named), to be trained; the base itself is frozen."""
    from peft import PeftModel

    folder = adapter or newest_adapter(card.folder)
    policy = PeftModel.from_pretrained(load_base(card, device=device), str(folder), is_trainable=True)
    # Where it is saved again, the adapter names the base it is merged into, whatever form of it was loaded here.
    policy.peft_config["default"].base_model_name_or_path = card.full_base
    return policy
