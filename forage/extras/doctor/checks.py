"""Checks: what the basic path needs, and what only some options need, each with the command that mends it.

Nothing but the standard library is imported at the top: a Python without any package can be told what it lacks.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from forage.errors import UserError, first_line
from forage.machine import PATIENCE, has_bf16, hub_reachable, output, unseen_gpu

ROOT = Path(__file__).resolve().parents[3]
# Packages of requirements.txt that only some options need. All others are needed by the basic path.
SOME_OPTIONS = {
    "bitsandbytes": "--quantize",
    "datasets": "--dataset-name of the hub",
    "deepspeed": "--sharding zero2 and zero3",
    "pyarrow": ".parquet files",
    "pypdf": "PDF files",
    "trl": "train_ppo.py",
}
ROOM = 3  # GiB that the demo writes, and more
SETUP = "make setup    # into .venv; then run .venv/bin/python"
PYTHON = (3, 11)  # what pyproject.toml needs
COMPOSE = (2, 24)  # what docker-compose.cpu.yml needs


class Check(NamedTuple):
    """One thing, and what it lacks; nothing if it is in order."""

    what: str
    lacks: str = ""
    mend: str = ""
    """A command."""


def needed() -> list[Check]:
    """What make demo's stages need with the defaults."""
    every = {name: bounds for name, bounds in pins("requirements.txt").items() if name not in SOME_OPTIONS}
    return [
        python(),
        packages("packages that every run needs", every, SETUP),
        torch(),
        packages("the small models, which come as packages", pins("requirements/models.txt"), SETUP),
        disk(Path.cwd()),
    ]


def optional() -> list[Check]:
    some = {name: bounds for name, bounds in pins("requirements.txt").items() if name in SOME_OPTIONS}
    single = packages("packages for single options", some, "pip install -r requirements.txt")
    return [gpu(), hub(), single, vllm(), docker()]


def pins(name: str) -> dict[str, str]:
    """The packages that a requirements file names, with their bounds. Example: {"torch": ">=2.13,<2.14"}."""
    lines = [line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    found = [re.match(r"([A-Za-z0-9][\w.-]*)(.*)", line) for line in lines]
    return {pin[1]: pin[2].strip() for pin in found if pin}


def python() -> Check:
    lacks = "" if sys.version_info >= PYTHON else f"{'.'.join(map(str, PYTHON))} or later is needed"
    return Check(f"Python {platform.python_version()}", lacks, "PYTHON=/path/to/another/python make setup")


def packages(what: str, pins: Mapping[str, str], mend: str) -> Check:
    """Which packages are missing or outside their bounds."""
    return Check(what, ", ".join(filter(None, (fault(name, bounds) for name, bounds in pins.items()))), mend)


def fault(name: str, bounds: str) -> str:
    """Example: numpy 2.1 (>=2.4,<3 was tested), or no pypdf (PDF files)."""
    try:
        here = version(name)
    except PackageNotFoundError:
        return f"no {name} ({SOME_OPTIONS[name]})" if name in SOME_OPTIONS else f"no {name}"
    if find_spec("packaging") is None:
        return ""
    from packaging.specifiers import SpecifierSet

    fits = SpecifierSet(bounds).contains(here, prereleases=True)
    return "" if fits else f"{name} {here} ({bounds} was tested)"


def torch() -> Check:
    mend = "scripts/install_torch.sh .venv/bin/python"  # the plain name would bring CUDA's libraries to a CPU
    try:
        import torch
    except (ImportError, OSError) as error:  # a shared library that is missing is an OSError
        return Check("torch", f"can't be imported: {first_line(error)}", mend)
    units = f"with{'' if has_bf16('cpu') else 'out'} bf16 units"
    return Check(f"torch {torch.__version__}, on {torch.get_num_threads()} of {os.cpu_count()} cores {units}")


def disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free / 2**30
    lacks = "" if free >= ROOM and os.access(folder, os.W_OK) else f"the demo writes {ROOM} GiB there"
    return Check(f"{free:.1f} GiB free in {folder}", lacks, f"df -h {folder}; ls -ld {folder}")


def gpu() -> Check:
    """A GPU that torch sees, or one that it doesn't."""
    try:
        import torch
    except (ImportError, OSError):
        return Check("GPU", "torch can't be imported")
    if torch.cuda.is_available():
        name = f"GPU: {torch.cuda.get_device_name()}"
        return Check(name, "" if has_bf16("cuda") else "no bf16 units, so fp32 is taken")
    return Check("GPU", unseen_gpu() or "torch sees none, so the small models run on the CPU")


def hub() -> Check:
    """Where the models of a GPU and data sets come from. An address may hold a password, so none is shown."""
    what = "model hub, for larger models and data sets"
    try:
        return Check(what, "" if hub_reachable(PATIENCE) else "does not answer, or HF_HUB_OFFLINE is set")
    except (UserError, ImportError) as error:
        return Check(what, first_line(error))


def vllm() -> Check:
    """vLLM, in this environment or in one of its own."""
    there = find_spec("vllm") or (ROOT / ".venv-vllm").exists()
    return Check("vLLM", "" if there else "not installed, so this process samples, which is slower",
                 "make .venv-vllm/.installed    # on a GPU: requirements/vllm.txt, into .venv-vllm")  # fmt: skip


def docker() -> Check:
    """Docker and its compose; only the stack in containers needs them."""
    said = re.match(r"v?(\d+)\.(\d+)", output("docker", "compose", "version", "--short"))
    lacks = "" if said and (int(said[1]), int(said[2])) >= COMPOSE else "compose 2.24 or later is needed"
    return Check("Docker, for the stack in containers", lacks, "make stack    # without containers")
