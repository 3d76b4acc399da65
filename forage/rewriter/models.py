"""Models of the rewriter on disk: loaded for training, saved for plain transformers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from forage.errors import UserError
from forage.machine import compute_dtype
from forage.outputs import check_replaceable
from forage.policy.creation import nf4
from forage.policy.policy import keep_trainable
from forage.rewriter.actors import Policy
from forage.rewriter.options import MARK, Options
from forage.rewriter.rewrites import with_padding
from forage.sole_writer import making_folder

# The largest Qwen2.5 that fits a card of 24 GB in each way of training: 17 GiB even with --lora-rank 0, which takes
# three copies in fp32, two of them with gradients and Adam's moments. Its licence is Apache-2.0.
GPU_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"


def load_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {model} has no eos token, so a rewrite can't end; use another --base-model")
    return tokenizer


def check_length(config: Any, options: Options) -> None:
    """Refuse prompts that are longer than the model's positions, where e.g. gpt2 would fail at the first such one."""
    places = getattr(config.get_text_config(), "max_position_embeddings", None)
    prompt, written = options.query.max_prompt_tokens, options.sampling.max_new_tokens
    if places is not None and prompt + written > places:
        raise UserError(
            f"--max-prompt-tokens {prompt} and --max-new-tokens {written} are more than the {places} tokens that "
            f"{options.base_model} can hold; lower one"
        )


def load_policy(model: str, tokenizer: Any, options: Options) -> Policy:
    """A model as a policy, without an adapter yet."""
    pad_id = with_padding(tokenizer).pad_token_id
    # In bf16, most of an update at a learning rate of 1e-5 is rounded away: only 1.7 % of the weights change.
    dtype = compute_dtype(options.actor.dtype) if options.actor.lora_rank else torch.float32
    lm = load_lm(model, dtype, quantize=options.actor.quantize)
    return Policy(lm, options.sampling, tokenizer.eos_token_id, pad_id, options.ppo.micro_batch)


def load_lm(name: str, dtype: torch.dtype, *, quantize: bool = False) -> Any:
    """A causal language model that computes in `dtype`; its weights in 4 bits if asked."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    lm: Any
    if quantize:
        packing = nf4()
        packing.bnb_4bit_compute_dtype = dtype
        lm = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, quantization_config=packing, device_map=device)
        keep_trainable(lm)
    else:
        lm = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
        lm.to(device)
    # A model's own generation settings (e.g. Qwen's repetition penalty) would mix with ours.
    lm.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    return lm.eval()


def merged(lm: Any, source: str) -> Any:
    """The model with its adapter merged; a 4-bit one unpacked, so that it stays the model that was trained.

    Merged into 4 bits, most of what an adapter adds would be rounded away.
    """
    if not hasattr(lm, "merge_and_unload"):
        return lm
    if not getattr(lm.get_base_model(), "is_loaded_in_4bit", False):
        return lm.merge_and_unload()
    from bitsandbytes.functional import dequantize_4bit

    plain = load_lm(source, lm.get_base_model().dtype)
    for name, layer in lm.get_base_model().named_modules():
        packed: Any = getattr(getattr(layer, "base_layer", layer), "weight", None)
        if getattr(packed, "quant_state", None) is None or name.endswith(".base_layer"):
            continue
        weight = dequantize_4bit(packed.data, packed.quant_state).float()
        if hasattr(layer, "get_delta_weight"):
            weight += layer.get_delta_weight(layer.active_adapters[0]).float()
        wanted = plain.get_submodule(name)
        wanted.weight.data.copy_(weight.T if isinstance(wanted, Conv1D) else weight)
    return plain


def save_lm(policy: Policy, source: str, tokenizer: Any, folder: Path) -> None:
    """Save a plain checkpoint in the dtype it was trained in: adapter merged, generation settings from `source`."""
    from transformers import GenerationConfig

    lm = policy.lm = merged(policy.lm, source)
    plain = lm.generation_config
    with suppress(OSError):  # the source may have none
        lm.generation_config = GenerationConfig.from_pretrained(source)
    check_replaceable("--output-dir", folder, MARK)  # it may have been filled since the start
    with making_folder(folder, overwrite=True) as partial:
        lm.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        (partial / MARK).touch()
    lm.generation_config = plain
