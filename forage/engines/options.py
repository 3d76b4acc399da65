"""Options of the engine that samples, and of its servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forage.arguments import fixed


@dataclass(frozen=True)
class EngineOptions:
    """The sampling engine."""

    engine: Literal["auto", "vllm", "local"] = "auto"
    """Sample from vLLM servers, or in this process (local); auto takes the servers if one answers."""
    urls: tuple[str, ...] = ("http://127.0.0.1:8100",)
    """Addresses of the vLLM servers; all episodes of a question go to the same one."""
    api_key: str = fixed("")
    """The servers' API key, from the environment's VLLM_API_KEY."""
    patience: float = fixed(300.0)
    """Seconds to keep trying while no server answers; then the script stops."""
    timeout: float = fixed(300.0)
    """Seconds one request may take."""
