"""Models of the rewriter on disk: loaded for training, saved for plain transformers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from forage.errors import UserError
from forage.extras.rewriter.actors import Policy, with_padding
from forage.extras.rewriter.options import MARK, Options
from forage.files import check_replaceable, making_folder
from forage.machine import compute_dtype
from forage.processes import process_device

# The largest Qwen2.5 that fits a card of 24 GB in each way of training, also with --lora-rank 0, which takes two copies
# in fp32, one of them with gradients and Adam's moments. Its licence is Apache-2.0.
GPU_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"


def load_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {model} has no eos token, so a rewrite can't end; use another --base-model")
    return tokenizer


def load_policy(model: str, tokenizer: Any, options: Options) -> Policy:
    """A model as a policy, without an adapter yet."""
    pad_id = with_padding(tokenizer).pad_token_id
    # In bf16, most of an update at a learning rate of 1e-5 is rounded away: only 1.7 % of the weights change.
    dtype = compute_dtype(options.actor.dtype) if options.actor.lora_rank else torch.float32
    return Policy(load_lm(model, dtype), options.sampling, tokenizer.eos_token_id, pad_id, options.ppo.micro_batch)


def load_lm(name: str, dtype: torch.dtype) -> Any:
    """A causal language model that computes in `dtype`."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    lm: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    lm.to(process_device())
    # A model's own generation settings (e.g. Qwen's repetition penalty) would mix with ours.
    lm.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    return lm.eval()


def save_lm(policy: Policy, source: str, tokenizer: Any, folder: Path) -> None:
    """Save a plain checkpoint in the dtype it was trained in: adapter merged, generation settings from `source`."""
    from transformers import GenerationConfig

    if hasattr(policy.lm, "merge_and_unload"):
        policy.lm = policy.lm.merge_and_unload()
    lm = policy.lm
    plain = lm.generation_config
    with suppress(OSError):  # the source may have none
        lm.generation_config = GenerationConfig.from_pretrained(source)
    check_replaceable("--output-dir", folder, MARK)  # it may have been filled since the start
    with making_folder(folder, overwrite=True) as partial:
        lm.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        (partial / MARK).touch()
    lm.generation_config = plain
