"""Random models of given sizes, made on the device: in bf16 or NF4, with a LoRA adapter, ready to train."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from bench.gpu_rows.device import device, free_memory
from forage.policy.creation import add_adapter, nf4
from forage.policy.options import AdapterOptions
from forage.policy.policy import keep_trainable


def random_model(settings: dict[str, Any], where: torch.device | None = None) -> Any:
    """A causal language model in bf16 with random weights; the same seed every time."""
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    values = dict(settings)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(0)
    with where or device():
        return auto.from_config(config, dtype=torch.bfloat16).eval()


def trained_policy(settings: dict[str, Any], *, quantized: bool = False, checkpointing: bool = False) -> Any:
    """A random model with a fresh adapter on every linear layer, in training mode, as grpo_train.py opens it."""
    model = random_model(settings)
    if quantized:
        quantize(model)
    policy = add_adapter(model, "random", AdapterOptions())
    policy.train()  # transformers checkpoints activations in training mode only
    if checkpointing:
        # transformers renamed it after 5.17, which a borrowed machine may have.
        new = getattr(policy, "activation_checkpointing_enable", None)
        (new or policy.gradient_checkpointing_enable)({"use_reentrant": False})
    free_memory()
    return policy


def quantize(model: Any) -> None:
    """Turn the linear layers, except for the output layer, into NF4 with the settings of create_lora_model.py."""
    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    for name, part in linear:
        if part is not model.get_output_embeddings():
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, packed(part))
    model.is_loaded_in_4bit = True  # peft asks the model, not its layers
    keep_trainable(model)


def packed(linear: nn.Linear) -> Any:
    bnb: Any = importlib.import_module("bitsandbytes")
    settings = nf4()
    form = {
        "quant_type": settings.bnb_4bit_quant_type, "compress_statistics": settings.bnb_4bit_use_double_quant,
        "quant_storage": settings.bnb_4bit_quant_storage,
    }  # fmt: skip
    layer = bnb.nn.Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None, settings.bnb_4bit_compute_dtype,
        device="meta", **form,
    )  # fmt: skip
    weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, module=layer, **form)
    layer.weight, layer.bias = weight.to(linear.weight.device), linear.bias  # quantises
    return layer
