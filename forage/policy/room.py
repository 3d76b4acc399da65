"""What fits into the memory that is free of this process's GPU: the micro-batch, and the sequences sampled at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from forage.errors import UserError
from forage.machine import compute_dtype
from forage.optimizer import MemoryOptions
from forage.policy.adapters import newest_adapter, versions
from forage.policy.card import PolicyCard
from forage.policy.footprint import (
    BF16,
    CONTEXT,
    FP32,
    GIB,
    Footprint,
    Lora,
    Precision,
    resident,
    slots_within,
    weight_bytes,
)
from forage.policy.memory import RESERVE, Work, training_settings
from forage.policy.shapes import ModelShape, shape_of
from forage.processes import Offload

LIVE = 300_000_000  # stage3_max_live_parameters of forage/grpo/deepspeed/zero3.json


def fitted(
    memory: MemoryOptions, card: PolicyCard, adapter: Path, max_tokens: int, *, plays: bool, offload: Offload = "none"
) -> MemoryOptions:
    """What --token-budget and --gradient-checkpointing leave out, filled in for the GPU; unchanged on a CPU.

    `plays`: a LocalEngine with a base of its own will be in this process too. Its keys and values come and go between
    the updates, and take what is free then; its weights stay.
    """
    chosen = memory.token_budget is not None and memory.gradient_checkpointing is not None
    if chosen or not torch.cuda.is_available() or compute_dtype(card.dtype) != torch.bfloat16:
        return memory
    shape = planned_shape(card.base)
    if shape is None:
        return memory
    work = Work(lora_of(adapter), "nf4" if card.quantized else "bf16", max_tokens)
    room = free_bytes() - (engine_weights(shape, work) if plays else 0)
    return filled_in(memory, shape, work, room + spared(resident(shape, work.lora, work.precision), offload))


def spared(kept: Footprint, offload: Offload) -> float:
    """What of a policy and its optimizer is not on the GPU."""
    weights = max(0.0, kept.weights - BF16 * LIVE) if offload == "all" else 0.0
    return weights + (kept.optimizer if offload != "none" else 0.0)


def engine_weights(shape: ModelShape, work: Work) -> float:
    """What a LocalEngine keeps on the GPU while nothing is played. An adapter is merged into a bf16 base."""
    adapter = work.lora.parameters(shape) * FP32 if work.precision == "nf4" else 0
    return weight_bytes(shape, work.precision) + adapter


def engine_slots(
    card: PolicyCard, wanted: int, longest: int, *, lora: Lora, merged: bool, how: str, way_out: str
) -> int:  # fmt: skip
    """How many of the `wanted` sequences to sample at once: on a GPU, those that fit beside what is loaded now.

    `lora` is still to be loaded (rank 0: is there already). Of a model that can't be planned, all are taken.
    """
    if not torch.cuda.is_available() or (shape := planned_shape(card.base)) is None:
        return wanted
    torch.cuda.empty_cache()  # what an update has left to this process counts as free
    dtype = compute_dtype(card.dtype)
    room = (free_bytes() - CONTEXT) * BF16 / dtype.itemsize  # the context is there already
    precision: Precision = "nf4" if card.quantized else "bf16"
    slots = slots_within(room, shape, lora, precision, wanted=wanted, longest=longest, merged=merged)
    free = f"{max(0.0, room) * dtype.itemsize / BF16 / GIB:.1f} GiB that are free of this GPU"
    if not slots:
        raise UserError(f"not even one sequence of {longest} tokens can be sampled in the {free}; {way_out}")
    print(f"engine: {slots} of {wanted} sequences of {longest} tokens at once, in the {free}; {how}", flush=True)
    return slots


def planned_shape(base: str) -> ModelShape | None:
    try:
        return shape_of(base)
    except UserError as error:
        print(f"memory: {error}; the defaults stay")
        return None


def lora_to_come(card: PolicyCard) -> Lora:
    """The adapter that will be loaded; a plain model has none."""
    return lora_of(newest_adapter(card.folder)) if versions(card.folder) else Lora(0)


def lora_of(adapter: Path) -> Lora:
    """Rank and layers of a published adapter."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    targets = config["target_modules"]
    return Lora(config["r"], () if isinstance(targets, str) else tuple({name.split(".")[-1] for name in targets}))


def free_bytes() -> float:
    """What a plan may use of this process's GPU: what a server on it leaves free, less a reserve."""
    free, total = torch.cuda.mem_get_info()
    return float(free + CONTEXT - RESERVE * total)  # a plan counts the context that is there already


def filled_in(memory: MemoryOptions, shape: ModelShape, work: Work, room: float) -> MemoryOptions:
    """The options with the largest micro-batch that fits, or the smallest if none does."""
    budget, checkpointing = memory.token_budget, memory.gradient_checkpointing
    found = training_settings(shape, work, room, budget=budget, checkpointing=checkpointing)
    if found is None:
        print(
            f"memory: an episode of {work.max_tokens} tokens may not fit into {max(room, 0.0) / GIB:.1f} GiB of this "
            "GPU; python -m forage.policy.memory says what would"
        )
        return replace(
            memory, token_budget=budget or work.max_tokens,
            gradient_checkpointing=True if checkpointing is None else checkpointing,
        )  # fmt: skip
    how = "recomputed" if found.gradient_checkpointing else "kept"
    print(f"memory: micro-batches of {found.token_budget} tokens, activations {how}, for {room / GIB:.1f} GiB")
    return replace(memory, token_budget=found.token_budget, gradient_checkpointing=found.gradient_checkpointing)
