"""Launch: how many processes torchrun started, and which sharding options work with them."""

from __future__ import annotations

import os

from forage.errors import UserError
from forage.sharding import OFFLOADS, Offload, Sharding


def started_processes() -> int:
    """Number of processes: torchrun, `accelerate launch` and `deepspeed` all set WORLD_SIZE."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def process_rank() -> int:
    """This process's number; known before the processes are connected."""
    return int(os.environ.get("RANK", "0"))


def check_sharding(sharding: Sharding, sequence_parallel: int = 1, offload: Offload = "none") -> None:
    """Fail before anything is loaded. One process may be sharded too, and so may a 4-bit base."""
    if sequence_parallel > 1 and started_processes() == 1:
        raise UserError(
            f"--sequence-parallel {sequence_parallel} needs processes to share the work; start with torchrun "
            "--nproc-per-node 2"
        )
    if sharding == "zero3" and sequence_parallel > 1:
        # With deepspeed 0.19 this hangs: one process waits for a layer's weights, the other for its tokens.
        raise UserError("--sequence-parallel does not work with --sharding zero3; give --sharding fsdp2")
    if sharding not in OFFLOADS[offload]:
        possible = " or ".join(OFFLOADS[offload])
        raise UserError(f"--offload {offload} does not work with --sharding {sharding}; give --sharding {possible}")
