"""Silences two library warnings that a user can do nothing about. All others stay."""

from __future__ import annotations

import logging
import warnings


def silence_library_noise() -> None:
    """Call before PEFT or sentence-transformers is imported, which import bitsandbytes; a second call does nothing.

    - PEFT asks every model it wraps for `is_gradient_checkpointing`, which transformers 5 has renamed.
    - bitsandbytes, when it is imported on a processor with bf16 units, looks for a 4-bit kernel in the package
      `kernels` (which would fetch it from the hub) and complains that it isn't installed. Its own kernel takes over.
    """
    warnings.filterwarnings(
        "ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning, r"transformers\.modeling_utils"
    )
    logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_is_worth_telling)


def _is_worth_telling(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Failed to load CPU gemm_4bit_forward")
