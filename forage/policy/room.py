"""What fits into the memory that is free of this process's GPU: the micro-batch, and the sequences sampled at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from forage.errors import UserError
from forage.machine import compute_dtype
from forage.optimizer import MemoryOptions
from forage.policy.card import PolicyCard
from forage.policy.footprint import (
    BF16,
    CONTEXT,
    FP32,
    GIB,
    ModelShape,
    Precision,
    shape_of,
    slots_within,
    weight_bytes,
)
from forage.policy.memory import RESERVE, Work, trainer_within
from forage.processes import Offload
from forage.text import say

LIVE = 300_000_000  # stage3_max_live_parameters of forage/grpo/deepspeed/zero3.json


def fitted(
    memory: MemoryOptions, card: PolicyCard, adapter: Path, max_tokens: int, *, plays: bool, offload: Offload = "none"
) -> MemoryOptions:
    """On a GPU, what --token-budget and --gradient-checkpointing leave out: the largest micro-batch that fits.

    `plays`: a LocalEngine with a base of its own will be in this process too. Its keys and values come and go between
    the updates, and take what is free then; its weights stay.
    """
    budget, again = memory.token_budget, memory.gradient_checkpointing
    if (budget is not None and again is not None) or compute_dtype(card.dtype) != torch.bfloat16:
        return memory
    if (shape := planned_shape(card.base)) is None:
        return memory
    work = Work(rank_of(adapter), precision_of(card), max_tokens)
    room = free_bytes() + offloaded(shape, work, offload) - (engine_weights(shape, work) if plays else 0)
    if found := trainer_within(shape, work, room, budget=budget, checkpointing=again):
        how = "recomputed" if found.gradient_checkpointing else "kept"
        print(f"memory: micro-batches of {found.token_budget} tokens, activations {how}, for {room / GIB:.1f} GiB")
        return replace(memory, token_budget=found.token_budget, gradient_checkpointing=found.gradient_checkpointing)
    print(
        f"memory: an episode of {max_tokens} tokens may not fit into {max(room, 0.0) / GIB:.1f} GiB of this GPU; lower "
        "--max-tokens, or take a smaller model or a larger GPU"
    )
    return replace(memory, token_budget=budget or max_tokens, gradient_checkpointing=again is not False)


def offloaded(shape: ModelShape, work: Work, offload: Offload) -> float:
    """What of a policy and its optimizer is not on the GPU."""
    weights = max(0.0, weight_bytes(shape, work.precision) - BF16 * LIVE) if offload == "all" else 0.0
    return weights + (2 * FP32 * shape.adapter(work.rank) if offload != "none" else 0.0)  # AdamW's two moments


def engine_weights(shape: ModelShape, work: Work) -> float:
    """What a LocalEngine keeps on the GPU while nothing is played."""
    return weight_bytes(shape, work.precision) + shape.adapter(work.rank) * FP32


def engine_slots(card: PolicyCard, wanted: int, longest: int, *, rank: int, way_out: str) -> int:
    """How many of the `wanted` sequences to sample at once on a GPU: those that fit beside what is loaded now.

    An adapter of this `rank` is still to be loaded (0: none is). Of a model that can't be planned, all are taken.
    """
    if (shape := planned_shape(card.base)) is None:
        return wanted
    torch.cuda.empty_cache()  # what an update has left to this process counts as free
    dtype = compute_dtype(card.dtype)
    room = (free_bytes() - CONTEXT) * BF16 / dtype.itemsize  # the context is there already
    slots = slots_within(room, shape, rank, precision_of(card), wanted=wanted, longest=longest)
    free = f"{max(0.0, room) * dtype.itemsize / BF16 / GIB:.1f} GiB that are free of this GPU"
    if not slots:
        raise UserError(f"not even one sequence of {longest} tokens can be sampled in the {free}; {way_out}")
    print(f"engine: {slots} of {wanted} sequences of {longest} tokens at once, in the {free}", flush=True)
    return slots


def planned_shape(base: str) -> ModelShape | None:
    try:
        return shape_of(base)
    except UserError as error:
        say(f"memory: {error}; the defaults stay")
        return None


def precision_of(card: PolicyCard) -> Precision:
    return "nf4" if card.quantized else "bf16"


def rank_of(adapter: Path) -> int:
    """A published adapter's rank; it is taken to change every linear layer."""
    rank: int = json.loads((adapter / "adapter_config.json").read_text())["r"]
    return rank


def free_bytes() -> float:
    """What a plan may use of this process's GPU: what a server on it leaves free, less a reserve."""
    free, total = torch.cuda.mem_get_info()
    return float(free + CONTEXT - RESERVE * total)  # a plan counts the context that is there already
