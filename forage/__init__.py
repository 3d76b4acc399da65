"""Forage trains a language model to search.

A script that a Python without its packages starts says so in one line, and so does one that is stopped while it still
imports. Both are said here, as each script imports this package first.
"""

import logging
import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

NEEDED = ("numpy", "rich", "torch", "transformers", "yaml")  # parts of requirements.txt that every script needs


def is_script(arguments: list[str]) -> bool:
    """Whether one of this project's commands runs: `python data_prep.py`, or `python -m forage.runs.report`."""
    here = Path(__file__).resolve().parents[1]
    module = arguments[arguments.index("-m") + 1 :][:1] if "-m" in arguments[:3] else []
    if module:
        return module[0].startswith("forage.")
    return len(arguments) > 1 and Path(arguments[1]).suffix == ".py" and Path(arguments[1]).resolve().parent == here


def say_stopped(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C while a script is still importing, in one line; later forage.arguments says it."""
    if issubclass(kind, KeyboardInterrupt):
        sys.stderr.write("stopped; re-run the same command to resume\n")
    else:
        sys.__excepthook__(kind, error, trace)


# Two warnings that a user can do nothing about: PEFT asks every model for `is_gradient_checkpointing`, which
# transformers 5 has renamed; and bitsandbytes, on a processor with bf16 units, looks for a 4-bit kernel in the package
# `kernels`, which would fetch it from the hub, before its own takes over.
warnings.filterwarnings(
    "ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning, r"transformers\.modeling_utils"
)
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(
    lambda record: not str(record.msg).startswith("Failed to load CPU gemm_4bit_forward")
)

# TRL would tell the hub of each run which kind of model and GPU it has; huggingface_hub reads this when imported.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

# On a CPU, oneDNN keeps a compiled product for each shape it has met, 1,024 in each of two caches. Nearly every
# micro-batch has a shape of its own, and they would add up to hundreds of MiB, never to be used again.
CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
for cache in CACHES:
    os.environ.setdefault(cache, "64")

if is_script(sys.orig_argv):
    sys.excepthook = say_stopped
    missing = next((name for name in NEEDED if find_spec(name) is None), "")
    if missing and "forage.extras.doctor" not in sys.orig_argv:  # which says itself what is missing
        sys.exit(
            f"error: {sys.executable} lacks the package {missing}; make .venv with `make setup` and run "
            "`source .venv/bin/activate` in each terminal, or call .venv/bin/python"
        )
