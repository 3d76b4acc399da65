"""Launch: what torchrun says about the processes it started, and which ways of sharing a model fit it."""

from __future__ import annotations

import os
from typing import Literal

from forage.errors import UserError

Sharding = Literal["none", "zero2", "zero3", "fsdp2"]


def started_processes() -> int:
    """How many the launcher started: torchrun, `accelerate launch` and `deepspeed` all say it in WORLD_SIZE."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_rank() -> int:
    """Which of them this is, before they have met."""
    return int(os.environ.get("RANK", "0"))


def check_sharding(sharding: Sharding, sequence_parallel: int = 1) -> None:
    """Fail before anything is loaded. A 4-bit base goes with all of them, since it is stored as bf16."""
    if (sharding != "none" or sequence_parallel > 1) and started_processes() == 1:
        option = f"--sharding {sharding}" if sharding != "none" else f"--sequence-parallel {sequence_parallel}"
        raise UserError(f"{option} needs processes to share the work; start with torchrun --nproc-per-node 2")
    if sharding == "zero3" and sequence_parallel > 1:
        # Seen with deepspeed 0.19: one waits for a layer's weights, the other for its tokens, for ever.
        raise UserError("--sequence-parallel does not go with --sharding zero3; give --sharding fsdp2")


# Strategies: each holds a Scorer, its trained weights in the order of their names, and their AdamW
