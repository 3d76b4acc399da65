"""Opens the engine that the options ask for."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx

from forage.engines.base import Engine
from forage.engines.options import EngineChoice, ServerOptions
from forage.engines.vllm import VLLMEngine
from forage.policy.policy import PolicyCard, load_base


@asynccontextmanager
async def open_engine(
    choice: EngineChoice, server: ServerOptions, card: PolicyCard, slots: int
) -> AsyncIterator[Engine]:
    """vLLM servers, or this process with so many sequences at once (64 at most); auto takes servers that answer."""
    if not server.api_key:
        server = replace(server, api_key=os.environ.get("VLLM_API_KEY", ""))
    if choice == "vllm" or (choice == "auto" and answers(server)):
        async with VLLMEngine(server) as engine:
            yield engine
    else:
        from forage.engines.local import LocalEngine  # takes seconds: only where it samples

        yield LocalEngine(load_base(card, dequantize=True), min(64, slots))


def answers(server: ServerOptions) -> bool:
    try:
        return httpx.get(f"{server.urls[0]}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
