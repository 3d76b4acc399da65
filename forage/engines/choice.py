"""Opens the engine that the options ask for."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx
import torch

from forage.engines.base import Engine, EngineOptions
from forage.engines.server_checks import Wanted
from forage.engines.vllm import VLLMEngine
from forage.errors import UserError
from forage.policy.card import PolicyCard
from forage.policy.policy import check_length, load_base, vocabulary_of
from forage.text import without_passwords

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from forage.engines.local import LocalEngine

SLOTS = 64  # most episodes that LocalEngine plays at once
LOGIT_BYTES = 28  # of each token that may come next, while one is drawn: logits, sorted or summed in wider types


@asynccontextmanager
async def open_engine(
    options: EngineOptions, card: PolicyCard, slots: int, tokens: int, *, sleeps: bool = False
) -> AsyncIterator[Engine]:  # fmt: skip
    """vLLM servers, or this process with `slots` sequences at a time (at most 64). `tokens`: an episode's most.

    `sleeps`: the caller lets the servers sleep between what it plays.
    """
    check_length(card, tokens)
    options = settled(with_key(options))
    if options.engine == "vllm":
        async with VLLMEngine(options, Wanted(card, vocabulary_of(card), tokens), sleeps=sleeps) as engine:
            yield engine
    else:
        yield open_local(card, min(SLOTS, slots), tokens)


def open_local(card: PolicyCard, slots: int, tokens: int) -> LocalEngine:
    """An engine in this process with at most so many sequences at a time, each of at most `tokens`.

    On a GPU a 4-bit base needs no room in 16 bits. Elsewhere it is unpacked first, which samples faster.
    """
    from forage.engines.local import LocalEngine  # imports transformers, which takes seconds

    on_gpu = torch.cuda.is_available()
    base = load_base(card, dequantize=not on_gpu)
    return LocalEngine(base, slots_within(base, slots, tokens) if on_gpu else slots)


def slots_within(base: PreTrainedModel, wanted: int, longest: int) -> int:
    """How many of the `wanted` sequences a GPU can sample at once, beside the base that is loaded.

    Each takes its keys and values, and its logits. A tenth of the GPU stays for the adapter and for reading prompts.
    """
    from forage.engines.local import GROW, SlotCache

    torch.cuda.empty_cache()  # what an update has left to this process counts as free
    free, total = torch.cuda.mem_get_info()
    token = 2 * math.prod(SlotCache(base.config, 1).shape) * base.dtype.itemsize
    room = free - total // 10
    slots: int = min(wanted, room // (token * (longest + GROW) + LOGIT_BYTES * base.config.vocab_size))
    there = f"{room / 2**30:.1f} GiB that are free of this GPU"
    if slots < 1:
        raise UserError(
            f"not even one sequence of {longest} tokens can be sampled in the {there}; lower --max-tokens, or start a "
            "vLLM server"
        )
    print(f"engine: {slots} of {wanted} sequences of {longest} tokens at once, in the {there}", flush=True)
    return slots


def with_key(options: EngineOptions) -> EngineOptions:
    """The options with the servers' API key, which may be in the environment."""
    return options if options.api_key else replace(options, api_key=os.environ.get("VLLM_API_KEY", ""))


def settled(options: EngineOptions) -> EngineOptions:
    """The options with what auto comes to now; says so where that is this process."""
    if options.engine != "auto":
        return options
    if uses_servers(options):
        return replace(options, engine="vllm")
    print(f"engine: this process, as no vLLM server answers at {without_passwords(options.urls[0])}")
    return replace(options, engine="local")


def uses_servers(options: EngineOptions) -> bool:
    """Whether vLLM servers sample; else this process does."""
    return options.engine == "vllm" or (options.engine == "auto" and answers(options))


def answers(options: EngineOptions) -> bool:
    """Is there a vLLM server at the first address?"""
    try:
        return httpx.get(f"{options.urls[0]}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
