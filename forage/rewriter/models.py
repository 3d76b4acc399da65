"""Models of the rewriter on disk: loaded for training, saved for plain transformers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from forage.errors import UserError
from forage.machine import compute_dtype
from forage.outputs import check_replaceable
from forage.rewriter.actors import Policy
from forage.rewriter.options import MARK, Options
from forage.rewriter.rewrites import with_padding
from forage.sole_writer import making_folder


def load_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {model} has no eos token, so a rewrite can't end; use another --base-model")
    return tokenizer


def load_policy(model: str, tokenizer: Any, options: Options, *, lora: bool) -> Policy:
    """A model as a policy, without an adapter yet; `lora` says whether it will get one."""
    pad_id = with_padding(tokenizer).pad_token_id
    return Policy(load_lm(model, lora=lora), options.sampling, tokenizer.eos_token_id, pad_id, options.ppo.micro_batch)


def load_lm(name: str, *, lora: bool) -> Any:
    """A causal language model in fp32; the base of an adapter in the dtype that suits this machine."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # In bf16, most of an update at a learning rate of 1e-5 is rounded away: only 1.7 % of the weights change.
    dtype = compute_dtype() if lora else torch.float32
    lm: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    # A model's own generation settings (e.g. Qwen's repetition penalty) would mix with ours.
    lm.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    return lm.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def save_lm(policy: Policy, source: str, tokenizer: Any, folder: Path) -> None:
    """Save a plain checkpoint in the dtype it was trained in: adapter merged, generation settings from `source`."""
    from transformers import GenerationConfig

    lm = policy.lm
    if hasattr(lm, "merge_and_unload"):
        lm = policy.lm = lm.merge_and_unload()
    plain = lm.generation_config
    with suppress(OSError):  # the source may have none
        lm.generation_config = GenerationConfig.from_pretrained(source)
    check_replaceable("--output-dir", folder, MARK)  # it may have been filled since the start
    with making_folder(folder, overwrite=True) as partial:
        lm.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        (partial / MARK).touch()
    lm.generation_config = plain
