"""Sharding: the ways to share a policy among processes, and what each can keep on the CPU."""

from __future__ import annotations

from typing import Literal, get_args

Sharding = Literal["none", "zero2", "zero3", "fsdp2"]
Offload = Literal["none", "optimizer", "all"]
OFFLOADS: dict[str, tuple[Sharding, ...]] = {
    "none": get_args(Sharding), "optimizer": ("zero2", "zero3"), "all": ("zero3",),
}  # fmt: skip
