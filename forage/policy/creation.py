"""Makes a policy folder: a base model, in 4 bits or as it is, with a fresh LoRA adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from forage.errors import UserError, first_line
from forage.library_noise import silence_library_noise
from forage.machine import Dtype
from forage.policy.adapters import adapter_path
from forage.policy.card import PolicyCard, write_policy_card
from forage.policy.identity import base_digest, folder_of
from forage.policy.options import AdapterOptions

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Sizes:
    """Parameters of a model and their bytes in memory."""

    parameters: int
    trainable: int
    bytes: int


def create_policy(
    base: str, folder: Path, adapter: AdapterOptions, *, quantize: bool, dtype: Dtype
) -> tuple[Sizes, Sizes]:
    """Write base, adapter and model.json into a folder.

    Returns the sizes of the base in bf16, and of the policy.
    """
    silence_library_noise()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        full = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, low_cpu_mem_usage=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{base} can't be loaded as a causal language model ({first_line(error)})") from error
    before = sizes(full)
    model = full
    if quantize:
        del full
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, quantization_config=nf4())
        model.save_pretrained(folder / "base")
        AutoTokenizer.from_pretrained(base).save_pretrained(folder / "base")
    policy = add_adapter(model, base, adapter)
    policy.save_pretrained(adapter_path(folder, 0))
    loaded = str(folder / "base") if quantize else base
    full_base = folder_of(base)  # None for weights that are no safetensors
    digest = base_digest(full_base) if full_base else ""
    write_policy_card(PolicyCard(folder, loaded, base, quantize, dtype, digest), folder)
    return before, sizes(policy)


def nf4() -> Any:
    """4-bit NormalFloat, https://arxiv.org/abs/2305.14314, with double quantisation.

    The packed weights are stored as bytes, which is what vLLM and other tools read; four_bit.py views them as bf16 for
    FSDP2 and ZeRO-3.
    """
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.uint8,
    )  # fmt: skip


def add_adapter(model: Any, base: str, options: AdapterOptions) -> Any:
    """The model with a fresh LoRA adapter, which changes nothing until it is trained."""
    silence_library_noise()
    from peft import LoraConfig, get_peft_model

    every = options.target_modules == ("all-linear",)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=options.r, lora_alpha=options.alpha, lora_dropout=options.dropout,
        use_rslora=options.rslora, use_dora=options.dora,
        target_modules="all-linear" if every else list(options.target_modules),
    )  # fmt: skip
    try:
        policy = get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"--target-modules {' '.join(options.target_modules)}: {first_line(error)}") from error
    # The adapter is merged into the full base later, so it names that one, even if a 4-bit copy is loaded here.
    policy.peft_config["default"].base_model_name_or_path = base
    return policy


def sizes(model: Any) -> Sizes:
    """Count true sizes: bitsandbytes packs several 4-bit weights into an element and keeps their shape beside it."""
    parameters = trainable = held = 0
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        number = state.shape.numel() if state is not None else parameter.numel()
        parameters += number
        trainable += number if parameter.requires_grad else 0
        held += parameter.numel() * parameter.element_size()
        if state is not None:
            held += state.absmax.numel() * state.absmax.element_size()
    return Sizes(parameters, trainable, held)


def sizes_table(before: Sizes, after: Sizes, *, quantized: bool) -> Table:
    from rich.table import Table

    table = Table("", "parameters", "trainable", "MiB in memory")
    share = f"{after.trainable:,} ({after.trainable / after.parameters:.2%})"
    table.add_row("base, bf16", f"{before.parameters:,}", "", f"{before.bytes / 2**20:,.1f}")
    kind = "NF4 base + adapter" if quantized else "base + adapter"
    table.add_row(kind, f"{after.parameters:,}", share, f"{after.bytes / 2**20:,.1f}")
    return table
