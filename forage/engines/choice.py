"""Opens the engine that the options ask for."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx

from forage.engines.base import Engine
from forage.engines.options import EngineOptions
from forage.engines.served import Wanted
from forage.engines.sleeping import SleepingEngine
from forage.engines.vllm import VLLMEngine
from forage.policy.card import PolicyCard
from forage.policy.policy import load_base, vocabulary_of


@asynccontextmanager
async def open_engine(
    options: EngineOptions, card: PolicyCard, slots: int, tokens: int, *, sleeps: bool = False
) -> AsyncIterator[Engine]:  # fmt: skip
    """vLLM servers, or this process with `slots` sequences at a time (at most 64). `tokens`: an episode's most.

    `sleeps`: the caller lets the servers sleep (SleepingEngine).
    """
    options = with_key(options)
    if options.engine == "vllm" or (options.engine == "auto" and answers(options)):
        kind = SleepingEngine if sleeps else VLLMEngine
        async with kind(options, Wanted(card, vocabulary_of(card), tokens)) as engine:
            yield engine
    else:
        if options.engine == "auto":
            print(f"engine: this process, as no vLLM server answers at {options.urls[0]}")
        from forage.engines.local import LocalEngine  # imports torch, which takes seconds

        yield LocalEngine(load_base(card, dequantize=True), min(64, slots))


def with_key(options: EngineOptions) -> EngineOptions:
    """The options with the servers' API key, which may be in the environment."""
    return options if options.api_key else replace(options, api_key=os.environ.get("VLLM_API_KEY", ""))


def answers(options: EngineOptions) -> bool:
    """Is there a vLLM server at the first address?"""
    try:
        return httpx.get(f"{options.urls[0]}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
