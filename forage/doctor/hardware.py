"""Processor, memory, GPUs and disks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forage.doctor.lines import Line, gib
from forage.errors import first_line
from forage.machine import has_bf16

CGROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
UNLIMITED = 2**60  # what the first version of cgroups writes for no limit is above this
TORCH = "scripts/install_torch.sh .venv/bin/python"


@dataclass(frozen=True)
class Limits:
    """What a container may use; None where nothing limits it."""

    memory: int | None
    cores: float | None


def cgroup_limits(root: Path = CGROUPS, own: Path = OWN_GROUPS) -> Limits:
    """The tightest limits of this process's control groups and those around them, of either version of cgroups."""
    memory, cores = [], []
    for controllers, path in memberships(own):
        if not controllers:
            folders = around(root, path)
            memory += [number(folder / "memory.max") for folder in folders]
            cores += [quota(*words(folder / "cpu.max")) for folder in folders]
        if "memory" in controllers:
            memory += [number(folder / "memory.limit_in_bytes") for folder in around(root / "memory", path)]
        if "cpu" in controllers:
            for folder in around(root / "cpu", path):
                cores.append(quota(*words(folder / "cpu.cfs_quota_us"), *words(folder / "cpu.cfs_period_us")))
    known = [size for size in memory if size is not None and size < UNLIMITED]
    return Limits(min(known, default=None), min((n for n in cores if n is not None), default=None))


def memberships(own: Path) -> Iterator[tuple[list[str], str]]:
    """(controllers, path) of each line. Example: "4:cpu,cpuacct:/docker/1" gives ["cpu", "cpuacct"], "/docker/1"."""
    for line in own.read_text().splitlines() if own.exists() else []:
        _, controllers, path = line.split(":", 2)
        yield [name for name in controllers.split(",") if name], path


def around(root: Path, path: str) -> list[Path]:
    """The group's folder and those above it. In a container only the root may be there, which is then its own."""
    inner = root / path.lstrip("/")
    return [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root) and folder.is_dir()]


def words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def number(path: Path) -> int | None:
    return next((int(word) for word in words(path) if word.isdecimal()), None)


def quota(*pair: str) -> float | None:
    """Example: "150000", "100000" gives 1.5 cores; "max" or "-1" no limit."""
    return int(pair[0]) / int(pair[1]) if len(pair) == 2 and pair[0].isdecimal() else None


def processor_line(limits: Limits, threads: int | None) -> Line:
    """`threads`: how many torch takes; None without torch."""
    there, usable = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    why = [f"{usable} of {there} for this process"] if usable < there else []
    if limits.cores is not None:
        why.append(f"its container may use {limits.cores:g}")
    given = os.environ.get("OMP_NUM_THREADS")
    if threads is not None:
        why.append(f"torch takes {threads}: OMP_NUM_THREADS is {given if given else 'not set'}")
    bf16 = has_bf16("cpu")
    why.append("with bf16 units" if bf16 else "without bf16 units, so fp32 is faster")
    figures = {
        "cores": there, "usable": usable, "limit": limits.cores, "threads": threads, "omp_num_threads": given,
        "bf16": bf16,
    }  # fmt: skip
    if threads is not None and limits.cores is not None and threads > max(1.0, limits.cores):
        command = f"export OMP_NUM_THREADS={max(1, int(limits.cores))}"
        return Line("problem", f"{there} cores", "; ".join([*why, "more threads than cores"]), command, figures=figures)
    return Line("ok", f"{there} cores", "; ".join(why), figures=figures)


def memory_line(limits: Limits, meminfo: Path = Path("/proc/meminfo")) -> Line:
    rows = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)) if meminfo.exists() else {}
    total, free = (int(rows.get(name, 0)) * 1024 for name in ("MemTotal", "MemAvailable"))
    figures = {"total": total, "free": free, "limit": limits.memory}
    why = f"{gib(free)} are free"
    if limits.memory is not None and limits.memory < total:
        why += f"; its container may use {gib(limits.memory)}"
    return Line("ok", f"memory {gib(total)}", why, figures=figures)


def machine_lines(*, torch_works: bool) -> list[Line]:
    limits, threads = cgroup_limits(), None
    if torch_works:
        import torch

        threads = torch.get_num_threads()
    return [processor_line(limits, threads), memory_line(limits)]


# GPUs


def torch_lines() -> list[Line]:
    """Whether torch can be imported, and what it sees."""
    try:
        import torch
    except (ImportError, OSError) as error:  # a shared library that is missing is an OSError
        why = f"can't be imported: {first_line(error)}"
        return [Line("missing" if isinstance(error, ModuleNotFoundError) and error.name == "torch" else "problem",
                     "torch", why, TORCH, needed=True)]  # fmt: skip
    built = torch.version.cuda
    figures = {"version": torch.__version__, "cuda": built}
    line = Line("ok", f"torch {torch.__version__}", f"built for CUDA {built}" if built else "built without CUDA",
                figures=figures)  # fmt: skip
    return [line, *gpu_lines()]


def gpu_lines() -> list[Line]:
    """Each GPU that torch sees, or why it sees none."""
    import torch

    with warnings.catch_warnings(record=True) as told:  # torch says in a warning what is wrong with the driver
        warnings.simplefilter("always")
        there = torch.cuda.is_available()
    if there:
        return [gpu_line(n) for n in range(torch.cuda.device_count())]
    why = first_line(told[0].message) if told and isinstance(told[0].message, Warning) else ""
    if names := nvidia_smi():
        if not torch.version.cuda:
            return [Line("problem", f"no GPU for torch, but nvidia-smi lists {names}", "this torch is the CPU build",
                         f"{TORCH} cuda")]  # fmt: skip
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = why or (f"CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else "torch doesn't say why")
        return [Line("problem", f"no GPU for torch, but nvidia-smi lists {names}", why, "nvidia-smi")]
    return [Line("choice", "no GPU", why or "small models that come as packages, in this process, on the CPU")]


def gpu_line(place: int) -> Line:
    import torch

    properties = torch.cuda.get_device_properties(place)
    figures = {"name": properties.name, "total": properties.total_memory,
               "capability": f"{properties.major}.{properties.minor}"}  # fmt: skip
    what = f"GPU {place}: {properties.name}, {gib(properties.total_memory)}"
    try:
        with torch.cuda.device(place):
            free, _ = torch.cuda.mem_get_info()
            bf16 = has_bf16(f"cuda:{place}")
    except RuntimeError as error:  # all of torch's CUDA errors: full, or another process has it alone
        return Line("problem", what, first_line(error), "nvidia-smi", figures=figures)
    figures |= {"free": free, "bf16": bf16}
    units = "with bf16 units" if bf16 else "without bf16 units, so fp32 is taken"
    return Line("ok", what, f"{gib(free)} are free; compute capability {figures['capability']}, {units}",
                figures=figures)  # fmt: skip


def nvidia_smi() -> str:
    """The GPUs that nvidia-smi lists; empty if there is none."""
    found = shutil.which("nvidia-smi")
    if not found:
        return ""
    command = [found, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ", ".join(done.stdout.split("\n")).strip(", ") if done.returncode == 0 else ""


# Disks


@dataclass(frozen=True)
class Place:
    """A folder that the scripts write to, and what will be written there at once."""

    name: str
    path: Path
    needs: float = 0.0
    what: str = ""


def disk_line(place: Place) -> Line:
    """The room where a folder is, or will be made."""
    there = next(path for path in (place.path.absolute(), *place.path.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    what = f"{place.name} {place.path}: {gib(free)} free"
    figures = {"path": str(place.path), "free": free, "needs": round(place.needs)}
    if not os.access(there, os.W_OK):
        return Line("problem", what, f"this user may not write to {there}", f"ls -ld {there}", needed=True,
                    figures=figures)  # fmt: skip
    if place.needs > free:
        return Line("problem", what, f"{place.what} takes {gib(place.needs)}", f"df -h {there}", needed=True,
                    figures=figures)  # fmt: skip
    return Line("ok", what, f"{place.what} takes {gib(place.needs)}" if place.needs else "", figures=figures)


def disk_lines(places: list[Place]) -> list[Line]:
    return [disk_line(place) for place in [*places, Place("temporary files", Path(tempfile.gettempdir()))]]
