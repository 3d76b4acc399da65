"""Bytes that an update sends between processes, by sharding: none, ZeRO-2, ZeRO-3, FSDP2.

    unshare --net bash -c "ip link set lo up; torchrun --standalone --nproc-per-node 2 -m bench.wire"

Run it in a network of its own (as root), since it counts what the kernel received on all interfaces: anything else on
the network would count too. The model has random weights in fp32; only an adapter is trained. An update has one
micro-batch for each process, then two: what the second adds is what a micro-batch costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from forage.cli import run_script
from forage.errors import UserError
from forage.grpo.sharding import ShardedLearner
from forage.policy.packing import TokenBatch, pack
from forage.processes import Sharding, join_processes, world

MIB = 2**20
WAYS: tuple[Sharding, ...] = ("none", "zero2", "zero3", "fsdp2")


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    width: int = 512
    """Hidden size of the model."""
    layers: int = 4
    """Its layers."""
    r: int = 16
    """Rank of the adapter."""
    tokens: int = 128
    """Tokens of a micro-batch."""


@dataclass(frozen=True)
class Sequence:
    """What is packed into a micro-batch."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]


def main(bench: BenchOptions) -> None:
    if world() == 1:
        raise UserError("one process sends nothing; start with torchrun --nproc-per-node 2")
    join_processes()
    lead = dist.get_rank() == 0
    for way in WAYS:
        policy = make_policy(bench)
        weights = list(policy.parameters())
        model, adapter = (
            sum(w.nbytes for w in weights if w.requires_grad == trained) / MIB for trained in (False, True)
        )
        learner = ShardedLearner(policy, sharding=way)
        one, two = (received(learner, bench, batches) / MIB for batches in (1, 2))
        if lead and way == WAYS[0]:
            print(f"model {model:.1f} MiB, adapter {adapter:.2f} MiB, processes {learner.world}")
        if lead:
            print(
                f"{way:5}  update of one micro-batch {one:.2f} MiB, each further micro-batch {two - one:.2f}",
                flush=True,
            )
    dist.destroy_process_group()


def make_policy(bench: BenchOptions) -> Any:
    torch.manual_seed(0)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=4096, hidden_size=bench.width, intermediate_size=3 * bench.width,
            num_hidden_layers=bench.layers, num_attention_heads=8, num_key_value_heads=8, tie_word_embeddings=True,
        )
    )  # fmt: skip
    return get_peft_model(base, LoraConfig(r=bench.r, target_modules="all-linear", task_type="CAUSAL_LM")).train()


def received(learner: ShardedLearner, bench: BenchOptions, batches: int) -> float:
    """Bytes that each process received in one update, on average; the second of two, as the first sets things up."""
    for _ in range(2):
        dist.barrier()
        before = counted()
        update(learner, bench, batches)
        dist.barrier()
        after = counted()
    return (after - before) / learner.world


def update(learner: ShardedLearner, bench: BenchOptions, batches: int) -> None:
    share = learner.shard([micro_batch(bench)] * (batches * learner.world))
    for number, batch in enumerate(share):
        loss = -learner.score(batch, 1.0).logprobs_BT.sum() / bench.tokens
        learner.backward(loss, last=number == len(share) - 1)
    learner.step(1e-4, 1.0)


def micro_batch(bench: BenchOptions) -> TokenBatch:
    sequence = Sequence(tuple(i % 4096 for i in range(bench.tokens)), (0, *(1,) * (bench.tokens - 1)))
    return pack([sequence], budget=bench.tokens)[0]


def counted() -> int:
    """Bytes received on all interfaces of this network so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[0]) for line in lines)


if __name__ == "__main__":
    run_script(main, __doc__)
