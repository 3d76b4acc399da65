"""Policy: a base model with a LoRA adapter, loaded from a folder that create_lora_model.py or sft_train.py made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from forage.errors import UserError
from forage.library_noise import silence_library_noise
from forage.machine import compute_dtype
from forage.policy.adapters import newest_adapter
from forage.policy.branches import attend_by_branches
from forage.policy.card import PolicyCard
from forage.policy.four_bit import store_as, unpack_to
from forage.policy.identity import base_digest, folder_of
from forage.policy.widening import keep_inputs_narrow


def load_tokenizer(card: PolicyCard) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(card.base)


def vocabulary_of(card: PolicyCard) -> int:
    """Number of tokens that the model has weights for: at least as many as the tokenizer knows."""
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(card.base).get_text_config().vocab_size)


def load_base(card: PolicyCard, *, dequantize: bool = False, device: str = "auto") -> Any:
    """The base that the adapter is trained on. `dequantize` unpacks 4-bit weights, so that an adapter can be merged in.

    Device auto: this process's GPU if it has one, else the CPU.
    """
    silence_library_noise()
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    check_base(card)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    dtype, config = compute_dtype(card.dtype), AutoConfig.from_pretrained(card.base)
    if card.quantized:
        config.quantization_config["bnb_4bit_compute_dtype"] = str(dtype).removeprefix("torch.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(card.base, config=config, dtype=dtype, device_map=device)
    if card.quantized:
        unpack_to(model, dtype)
    if card.quantized and dequantize:
        return model.dequantize().to(dtype)
    if card.quantized:
        store_as(model, torch.uint8)  # earlier versions stored bf16
        for weight in model.parameters():  # transformers leaves those of a 4-bit base as they are stored
            if weight.is_floating_point():
                weight.data = weight.data.to(dtype)
        keep_trainable(model)
    return model


def check_base(card: PolicyCard) -> None:
    """Refuse a base whose weights were changed in place since the policy was made from it."""
    folder = folder_of(card.base) if card.base_digest else None
    if folder is not None and base_digest(folder) != card.base_digest:
        raise UserError(
            f"{card.base} has other weights than when {card.folder} was made from it; put those back, or make the "
            "policy again in another folder"
        )


def keep_trainable(model: Any) -> None:
    """Stop bitsandbytes from repacking 4-bit weights at the first pass without gradients.

    It does so on processors with bf16 units. Repacked weights have no gradient, so a policy that was evaluated would
    then silently be trained with wrong gradients.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def load_policy(card: PolicyCard, adapter: Path | None = None, device: str = "auto") -> Any:
    """The frozen base with a trainable adapter; without `adapter`, the newest one."""
    silence_library_noise()
    from peft import PeftModel

    folder = adapter or newest_adapter(card.folder)
    policy = PeftModel.from_pretrained(load_base(card, device=device), str(folder), is_trainable=True)
    # When it is saved again, the adapter names the full base that it is merged into, even if a 4-bit copy is loaded.
    policy.peft_config["default"].base_model_name_or_path = card.full_base
    attend_by_branches(policy.get_base_model())
    keep_inputs_narrow(policy)
    return policy
