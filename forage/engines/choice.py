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
from forage.engines.vllm import VLLMEngine
from forage.policy.card import PolicyCard
from forage.policy.policy import load_base, vocabulary_of


@asynccontextmanager
async def open_engine(options: EngineOptions, card: PolicyCard, slots: int, tokens: int) -> AsyncIterator[Engine]:
    """vLLM servers, or this process with `slots` sequences at a time (at most 64). `tokens`: an episode's most."""
    if not options.api_key:
        options = replace(options, api_key=os.environ.get("VLLM_API_KEY", ""))
    if options.engine == "vllm" or (options.engine == "auto" and answers(options)):
        async with VLLMEngine(options, Wanted(card, vocabulary_of(card), tokens)) as engine:
            yield engine
    else:
        if options.engine == "auto":
            print(f"engine: this process, as no vLLM server answers at {options.urls[0]}")
        from forage.engines.local import LocalEngine  # imports torch, which takes seconds

        yield LocalEngine(load_base(card, dequantize=True), min(64, slots))


def answers(options: EngineOptions) -> bool:
    """Is there a vLLM server at the first address?"""
    try:
        return httpx.get(f"{options.urls[0]}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
