"""Which engine samples, and where its servers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ServerOptions:
    """Which vLLM servers sample."""

    urls: tuple[str, ...] = ("http://127.0.0.1:8100",)
    """Their addresses; an episode stays with one."""
    api_key: str = ""
    """As the servers were started with; by the environment, VLLM_API_KEY, rather than here."""
    patience: float = 300.0
    """Seconds a request is tried again while no server answers, from its first failure on; then its episode ends."""
    timeout: float = 300.0
    """Seconds one try of a request may take."""


# The options.

EngineChoice = Literal["auto", "vllm", "local"]
