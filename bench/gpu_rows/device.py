"""The device: its name, clock, memory and speed. Everything works on a CPU too, with the process's own memory."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from bench.gpu_rows.scale import Scale

GIB = 2**30
LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "trl", "liger-kernel", "accelerate")
# Dense bf16 FLOP/s by the vendors' data sheets; a model FLOPs utilisation refers to these.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "4090": 165e12}
CONTEXT_GIB = 1.0  # what a card has less than its name says: the driver's part and the CUDA context


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def synchronize() -> None:
    """Wait for the GPU: its work is only queued when a call returns."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """(seconds, peak GiB) of some work. On a GPU the peak is of PyTorch's tensors, without the CUDA context."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    synchronize()
    started = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - started, peak_gib()


def peak_gib() -> float:
    """Peak since the last `measured` began; on a CPU, of the process since its start."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / GIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def free_memory() -> None:
    """Return what is unused to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def limit_memory(gib: float) -> None:
    """Let PyTorch take no more than a card of this size has to give."""
    free_memory()
    total = torch.cuda.get_device_properties(device()).total_memory / GIB
    torch.cuda.set_per_process_memory_fraction(min(1.0, (gib - CONTEXT_GIB) / total))


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def peak_flops(name: str) -> float | None:
    """The assumed peak. Examples: "NVIDIA H100 80GB HBM3" gives 989e12, an unknown card gives None."""
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)


def describe(scale: Scale) -> dict[str, Any]:
    """What everything is measured on, with the speed of a large bf16 product beside the assumed peak."""
    facts: dict[str, Any] = {"device": device_name(), "assumed_peak_tflops": (peak_flops(device_name()) or 0) / 1e12}
    if torch.cuda.is_available():
        facts["memory_gib"] = torch.cuda.get_device_properties(device()).total_memory / GIB
        facts["cuda"] = torch.version.cuda
    return facts | {"product_tflops": product_tflops(scale.matrix), **installed()}


def product_tflops(width: int, times: int = 10) -> float:
    """Speed of a product of two square bf16 matrices."""
    left, right = (torch.randn(width, width, device=device(), dtype=torch.bfloat16) for _ in range(2))

    def products() -> None:
        for _ in range(times):
            left @ right

    products()
    seconds, _ = measured(products)
    return times * 2 * width**3 / seconds / 1e12


def installed() -> dict[str, str]:
    versions = {}
    for library in LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            versions[library] = "missing"
    return versions
