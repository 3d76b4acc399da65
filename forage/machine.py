"""What this machine offers: a reachable model hub, bf16 units, a GPU. Imports torch and httpx only where needed.

python -m forage.machine    fails with one line if torch sees no GPU that it should
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from forage.errors import UserError

if TYPE_CHECKING:
    import torch

Dtype = Literal["auto", "bfloat16", "float32"]


@lru_cache(maxsize=1)
def hub_reachable(timeout: float = 5.0) -> bool:
    """True if the hub (or the mirror in HF_ENDPOINT) answers at all; HF_HUB_OFFLINE=1 says no without asking."""
    import httpx

    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
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


def bearer(name: str) -> dict[str, str]:
    """The headers that show a server the key in this variable of the environment, if it is set."""
    key = os.environ.get(name)
    return {"Authorization": f"Bearer {key}"} if key else {}


def is_here(url: str) -> bool:
    """Whether an address leads to this machine alone. Example: http://localhost:8100, but not http://gpu1:8100."""
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:  # no address at all
        return False


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def has_bf16(device: str) -> bool:
    """Whether this device computes in bf16, and faster than in fp32.

    Emulation is 5 times slower. With AVX-512's bf16, an AMD EPYC multiplies 1.8 times as fast as in fp32, an Intel Xeon
    without AMX half as fast.
    """
    if device.startswith("cuda"):
        import torch

        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    units = "amx_bf16" if "GenuineIntel" in processor() else "avx512_bf16|amx_bf16|bf16"
    return bool(re.search(rf"\b({units})\b", processor()))


PATIENCE = 3.0  # seconds for a command


def unseen_gpu() -> str:
    """Why torch does not see the GPU that nvidia-smi lists, and the way out; empty if it does, or there is none.

    One that CUDA_VISIBLE_DEVICES hides is not looked for.
    """
    import torch

    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles")
    if hidden or torch.cuda.is_available():
        return ""
    driver = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0]
    if not driver:
        return ""
    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} has no CUDA; build the image with it: docker compose build (without "
            "containers: scripts/install_torch.sh .venv/bin/python cuda)"
        )
    return (
        "torch sees no GPU, though nvidia-smi lists one; torch's warning above says why, or CUDA_VISIBLE_DEVICES names "
        f"another. If driver {driver} is too old for torch's CUDA {torch.version.cuda}, update it, or install torch "
        "and vLLM built for an older CUDA (pytorch.org; vLLM's images end in -cu129)"
    )


def output(*command: str) -> str:
    """What a command prints; empty if it fails, is missing, or takes longer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def processor() -> str:
    """The text of /proc/cpuinfo; empty where there is none."""
    told = Path("/proc/cpuinfo")
    return told.read_text() if told.exists() else ""


def compute_dtype(dtype: Dtype = "auto") -> torch.dtype:
    """auto: bf16 if the device is faster in it, else fp32."""
    import torch

    if dtype == "auto":
        dtype = "bfloat16" if has_bf16("cuda" if torch.cuda.is_available() else "cpu") else "float32"
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]


if __name__ == "__main__":
    import torch

    none = "torch finds no GPU, nor does nvidia-smi; docker needs the NVIDIA container toolkit"
    sys.exit(None if torch.cuda.is_available() else unseen_gpu() or none)
