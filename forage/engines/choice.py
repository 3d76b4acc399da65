"""Opens the engine that the options ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx

from forage.arguments import imported_class
from forage.engines.base import Engine, EngineOptions, Job
from forage.policy.policy import check_length
from forage.text import without_passwords

# By name, so that only the one that is asked for is imported, which takes seconds; a user's own is named in this way.
ENGINES = {"vllm": "forage.engines.vllm:VLLMEngine", "local": "forage.engines.local:LocalEngine"}


@asynccontextmanager
async def open_engine(options: EngineOptions, job: Job) -> AsyncIterator[Engine]:
    """The engine that --engine names."""
    check_length(job.manifest, job.tokens)
    options = settled(options)
    name = ENGINES.get(options.engine, options.engine)
    kind = imported_class("--engine", name, Engine, "forage.engines.base.Engine")
    async with kind.open(options, job) as engine:
        yield engine


def settled(options: EngineOptions) -> EngineOptions:
    """The options with what auto comes to now; says so where that is this process."""
    if options.engine != "auto":
        return options
    if answers(options):
        return replace(options, engine="vllm")
    print(f"engine: this process, as no vLLM server answers at {without_passwords(options.urls[0])}")
    return replace(options, engine="local")


def answers(options: EngineOptions) -> bool:
    """Is there a vLLM server at the first address?"""
    try:
        return httpx.get(f"{options.urls[0]}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
