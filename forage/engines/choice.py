"""Opens the engine that the options ask for."""

from __future__ import annotations

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
from forage.policy.adapters import newest_adapter, versions
from forage.policy.card import PolicyCard
from forage.policy.memory import SLOTS
from forage.policy.policy import check_length, load_base, vocabulary_of
from forage.policy.room import engine_slots, rank_of
from forage.text import without_passwords

if TYPE_CHECKING:
    from forage.engines.local import LocalEngine


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

    base = load_base(card, dequantize=not torch.cuda.is_available())
    if torch.cuda.is_available():
        rank = rank_of(newest_adapter(card.folder)) if versions(card.folder) else 0  # a plain model has none
        way_out = "lower --max-tokens, or start a vLLM server"
        slots = engine_slots(card, slots, tokens, rank=rank, way_out=way_out)
    return LocalEngine(base, slots)


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
