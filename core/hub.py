"""Is the model hub there? Asked once, briefly, so that nothing waits minutes for a name that never resolves."""

from __future__ import annotations

import os
from functools import lru_cache

import httpx


@lru_cache(maxsize=1)
def hub_reachable(timeout: float = 5.0) -> bool:
    """True where the hub (or the mirror in HF_ENDPOINT) answers at all; HF_HUB_OFFLINE=1 says no without asking."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return False
    try:
        httpx.head(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), timeout=timeout)
    except httpx.TransportError:
        return False
    return True
