"""What this machine offers: a reachable model hub, bf16 units. Imports torch and httpx only where needed."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from forage.errors import UserError

if TYPE_CHECKING:
    import torch

Dtype = Literal["auto", "bfloat16", "float32"]


class Choice(NamedTuple):
    """What a script takes where an option says auto, and why."""

    name: str
    why: str


@lru_cache(maxsize=1)
def hub_reachable(timeout: float = 5.0) -> bool:
    """True if the hub (or the mirror in HF_ENDPOINT) answers at all; HF_HUB_OFFLINE=1 says no without asking."""
    import httpx

    if hub_switched_off():
        return False
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        httpx.head(address, timeout=timeout)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        # Not shown: an address may hold a password.
        raise UserError("HF_ENDPOINT is no address of the form https://HOST:PORT; mend or unset it") from error
    except httpx.TransportError:
        return False
    return True


def hub_switched_off() -> bool:
    """Whether HF_HUB_OFFLINE says not to ask the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def has_bf16(device: str) -> bool:
    """Whether this device computes in bf16 rather than emulating it (emulation is 5 times slower than fp32)."""
    if device.startswith("cuda"):
        import torch

        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(re.search(r"\b(avx512_bf16|amx_bf16|bf16)\b", processor()))


def gains_by_bf16(device: str) -> bool:
    """Whether large products in bf16 are faster than in fp32, not just smaller.

    With AVX-512's bf16, an AMD EPYC embeds 1.8 times as fast as in fp32, an Intel Xeon without AMX .7 times.
    """
    intel = "GenuineIntel" in processor() and not re.search(r"\bamx_bf16\b", processor())
    return has_bf16(device) and (device.startswith("cuda") or not intel)


def processor() -> str:
    """The text of /proc/cpuinfo; empty where there is none."""
    told = Path("/proc/cpuinfo")
    return told.read_text() if told.exists() else ""


def compute_dtype(dtype: Dtype = "auto") -> torch.dtype:
    """auto: bf16 if the device computes in it, fp32 if it would have to emulate it."""
    import torch

    if dtype == "auto":
        dtype = "bfloat16" if has_bf16("cuda" if torch.cuda.is_available() else "cpu") else "float32"
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
