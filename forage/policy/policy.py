"""Policy: a base model with a LoRA adapter, made by create_lora_model.py or sft_train.py, and loaded from its folder.

A 4-bit base's weights are bytes, as bitsandbytes packs them and every tool reads them. FSDP2 and ZeRO-3 want weights of
one type, so there the same bytes are called bf16. They are never cast: a cast changes bytes that are NaN in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forage.errors import UserError, first_line
from forage.machine import Dtype, compute_dtype
from forage.policy.adapters import newest_adapter, publish_adapter, undamaged
from forage.policy.base_models import base_digest, folder_of
from forage.policy.logprobs import check_scores
from forage.policy.manifest import AdapterOptions, PolicyManifest, write_policy_manifest
from forage.policy.packing import attend_by_branches
from forage.policy.precision import fuse_adapters

# Loading


def load_tokenizer(manifest: PolicyManifest) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(manifest.base)
    except (OSError, ValueError) as error:
        raise UserError(f"{manifest.base} has no tokenizer that can be loaded ({first_line(error)})") from error


def vocabulary_of(manifest: PolicyManifest) -> int:
    """Number of tokens that the model has weights for: at least as many as the tokenizer knows."""
    return int(base_config(manifest).get_text_config().vocab_size)


def check_length(manifest: PolicyManifest, tokens: int) -> None:
    """Refuse episodes that are longer than the base was made for.

    With rotations that depend on the length ("dynamic", "longrope"), all positions of a sequence change once it, or
    another one beside it, is longer than the base was first trained with.
    """
    text = base_config(manifest).get_text_config()
    rotations = getattr(text, "rope_parameters", None) or {}
    most = getattr(text, "max_position_embeddings", None) or tokens
    if rotations.get("rope_type") in ("dynamic", "longrope"):
        most = min(most, rotations.get("original_max_position_embeddings") or most)
    if tokens > most:
        raise UserError(
            f"--max-tokens {tokens} is more than the {most} that {manifest.base} takes; give {most} or less"
        )


def load_base(manifest: PolicyManifest, *, dequantize: bool = False, device: str = "auto") -> Any:
    """The base that the adapter is trained on. `dequantize` unpacks 4-bit weights, to sample faster or to serve them.

    Device auto: this process's GPU if it has one, else the CPU.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    check_base(manifest)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    dtype, config = compute_dtype(manifest.dtype), base_config(manifest)
    if manifest.quantized:
        config.quantization_config["bnb_4bit_compute_dtype"] = str(dtype).removeprefix("torch.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(manifest.base, config=config, dtype=dtype, device_map=device)
    if not manifest.quantized:
        return model
    # bitsandbytes unpacks to the type of the input in the forward pass, but in the backward pass, and for good, to the
    # type that was quantised. If that rounds more, they would not be the same weights.
    for layer in packed_layers(model):
        layer.weight.quant_state.dtype = dtype
    if dequantize:
        return model.dequantize().to(dtype)
    for weight in model.parameters():  # transformers leaves those of a 4-bit base as they are stored
        if weight.is_floating_point():
            weight.data = weight.data.to(dtype)
    keep_trainable(model)
    return model


def base_config(manifest: PolicyManifest) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(manifest.base)
    except (OSError, ValueError) as error:
        raise UserError(f"the base {manifest.base} can't be loaded ({first_line(error)})") from error


def check_base(manifest: PolicyManifest) -> None:
    """Refuse a base whose weights were changed in place since the policy was made from it."""
    folder = folder_of(manifest.base) if manifest.base_digest else None
    if folder is not None and base_digest(folder) != manifest.base_digest:
        raise UserError(
            f"{manifest.base} has other weights than when {manifest.folder} was made from it; put those back, or make "
            "the policy again in another folder"
        )


def keep_trainable(model: Any) -> None:
    """Stop bitsandbytes from repacking 4-bit weights at the first pass without gradients.

    It does so on processors with bf16 units. Repacked weights have no gradient, so a policy that was evaluated would
    then silently be trained with wrong gradients.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def load_policy(manifest: PolicyManifest, adapter: Path | None = None, device: str = "auto") -> Any:
    """The frozen base with a trainable adapter; without `adapter`, the newest one."""
    from peft import PeftModel

    folder = undamaged(adapter) if adapter else newest_adapter(manifest.folder)
    policy = PeftModel.from_pretrained(load_base(manifest, device=device), str(folder), is_trainable=True)
    # When it is saved again, the adapter names the full base that it is merged into, even if a 4-bit copy is loaded.
    policy.peft_config["default"].base_model_name_or_path = manifest.full_base
    check_scores(policy)
    return ready_to_train(policy)


def ready_to_train(policy: Any) -> Any:
    """The policy with our attention over trees, and adapters that compute in its type."""
    # On Hopper and later PyTorch prefers cuDNN's attention, which plans for half a second at each new length.
    torch.backends.cuda.enable_cudnn_sdp(False)
    attend_by_branches(policy.get_base_model())
    fuse_adapters(policy)
    return policy


# Making


def create_policy(base: str, folder: Path, adapter: AdapterOptions, *, quantize: bool, dtype: Dtype) -> str:
    """Write base, adapter and model.json into a folder; return the policy's size in words."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quantization = {"quantization_config": nf4()} if quantize else {}
    try:
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, **quantization)
    except (OSError, ValueError) as error:
        raise UserError(f"{base} can't be loaded as a causal language model ({first_line(error)})") from error
    if quantize:
        model.save_pretrained(folder / "base")
        AutoTokenizer.from_pretrained(base).save_pretrained(folder / "base")
    policy = add_adapter(model, base, adapter)
    publish_adapter(policy, folder, 0)
    loaded = str(folder / "base") if quantize else base
    full_base = folder_of(base)  # None for weights that are no safetensors
    digest = base_digest(full_base) if full_base else ""
    write_policy_manifest(PolicyManifest(folder, loaded, base, quantize, dtype, digest), folder)
    trained, every = policy.get_nb_trainable_parameters()
    mib = policy.get_memory_footprint() / 2**20
    return f"trains {trained:,} of {every:,} parameters ({trained / every:.2%}), takes {mib:,.1f} MiB of memory"


def nf4() -> Any:
    """4-bit NormalFloat, https://arxiv.org/abs/2305.14314, with double quantisation.

    The packed weights are stored as bytes, which is what vLLM and other tools read; `store_as` views them as bf16.
    """
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.uint8,
    )  # fmt: skip


def add_adapter(model: Any, base: str, options: AdapterOptions) -> Any:
    """The model with a fresh LoRA adapter, which changes nothing until it is trained."""
    from peft import LoraConfig, get_peft_model

    every = options.target_modules == ("all-linear",)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=options.r, lora_alpha=options.alpha,
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


# 4-bit weights


def packed_layers(model: nn.Module) -> Iterator[Any]:
    """The layers whose weight is packed."""
    for layer in model.modules():
        weight = dict(layer.named_parameters(recurse=False)).get("weight")
        if getattr(weight, "quant_state", None) is not None:
            yield layer


def store_as(model: nn.Module, dtype: torch.dtype) -> None:
    """Call the packed bytes uint8, or bf16 where something shards them."""
    for layer in packed_layers(model):
        if layer.weight.dtype != dtype:
            layer.weight.data = viewed(layer.weight.data, dtype)
            layer.weight.quant_storage = layer.quant_storage = dtype


def viewed(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bytes as numbers of another type, in a column, as bitsandbytes lays them out."""
    size = packed.numel() * packed.element_size()
    if size % dtype.itemsize:
        raise UserError(
            f"a 4-bit weight of {size} bytes can't be sharded as bf16; give --sharding zero2, or none, or make the "
            "policy with --no-quantize"
        )
    return packed.reshape(-1).view(dtype).view(-1, 1)


def move_scales(model: nn.Module, device: torch.device) -> None:
    """Bring what unpacks the weights to a device. Moving a weight's data alone leaves its scales behind."""
    for layer in packed_layers(model):
        for state in (layer.weight.quant_state, layer.quant_state):  # sharding may take the weight's, not the layer's
            state.to(device)
