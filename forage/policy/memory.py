"""What fits on the GPUs, and the settings that make it fit, from a model's configuration alone.

    python -m forage.policy.memory --mib 24564 --base Qwen/Qwen2.5-7B-Instruct

Prints lines NAME=VALUE, which `scripts/stack.sh prepare` saves for its services, and on stderr how trainer and vLLM
server share the GPUs. What is already set is kept. The two are separate processes, so on one GPU both must fit at once;
of several, the server gets the first and the trainer the others. The figure for training is an upper bound; those for
vLLM and CUDA come from vLLM's code and some assumptions. Loads no weights and no torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from forage.cli import run_script
from forage.errors import UserError, check_at_least_one
from forage.policy.footprint import CONTEXT, GIB, ModelShape, Precision, serving, shape_of, training
from forage.text import say

Serve = Literal["auto", "nf4", "bf16"]
# Kept free of each card: the allocators' fragments, and errors of what is assumed about vLLM and CUDA.
RESERVE = 0.08
APART = 0.9  # share of a card of its own that vLLM takes, its default
BUDGETS = (16384, 8192, 4096, 2048, 1024)
# Sharing a card is worth it only if the server plays this many episodes at once.
MIN_SEQUENCES = 16
# Episodes that are played at the same time are at different turns: on average they have half of their greatest length.
FILLED = 0.5
SLOTS = 64  # most episodes that LocalEngine plays at once


@dataclass(frozen=True)
class Work:
    """What is trained and played."""

    rank: int = 16
    precision: Precision = "nf4"
    """How the base is kept in training."""
    max_tokens: int = 2048
    """Most tokens of an episode."""
    sequences: int = 64
    """Episodes that the server plays at once, if there is room for their keys and values."""


@dataclass(frozen=True)
class Trainer:
    """The largest micro-batch that fits, and what it takes."""

    token_budget: int
    gradient_checkpointing: bool
    bytes: float

    @property
    def flags(self) -> str:
        return (
            f"--token-budget {self.token_budget} --{'' if self.gradient_checkpointing else 'no-'}gradient-checkpointing"
        )


@dataclass(frozen=True)
class Server:
    """What the server is told, and what it takes."""

    serve: Precision
    sequences: int
    batched_tokens: int
    bytes: float

    @property
    def flags(self) -> str:
        return f"--max-num-seqs {self.sequences} --max-num-batched-tokens {self.batched_tokens}"

    def share(self, gib: float) -> float:
        """The part of the card's memory that vLLM takes."""
        return math.ceil(100 * self.bytes / (gib * GIB)) / 100


def plan(
    shape: ModelShape, gib: float, work: Work, serve: Serve = "auto", *, shared: bool, processes: int = 1
) -> tuple[Trainer, Server] | None:
    """What fits one card for both, or a card for the server and others for the trainer's processes.

    In bf16 if possible, which vLLM serves faster, and with as many episodes at once as possible: playing takes most of
    a step. A base that is trained in bf16 is served as it is.
    """
    kinds: tuple[Precision, ...] = ("bf16", "nf4") if serve == "auto" else (serve,)
    kinds = kinds if work.precision == "nf4" else ("bf16",)
    room, fewest = usable(gib), min(work.sequences, MIN_SEQUENCES) if shared else 1
    for kind, sequences in product(kinds, halves(work.sequences, fewest)):
        server = server_of(shape, gib, work, kind, sequences)
        trainer = trainer_within(shape, work, room - (server.bytes if shared else 0), processes)
        if server.bytes <= room and trainer:
            return trainer, server
    return None


def usable(gib: float) -> float:
    """Bytes of a card that a plan may use."""
    return gib * GIB * (1 - RESERVE)


def trainer_within(
    shape: ModelShape, work: Work, room: float, processes: int = 1, *, budget: int | None = None,
    checkpointing: bool | None = None,
) -> Trainer | None:  # fmt: skip
    """The largest micro-batch that fits, of whole episodes; activations are kept if that leaves room for one.

    Recomputing them costs a third of the speed. A `budget` or `checkpointing` that is given stays.
    """
    longest = work.max_tokens
    budgets = (budget,) if budget else (*(size for size in BUDGETS if size > longest), longest)
    for again, tokens in product((False, True) if checkpointing is None else (checkpointing,), budgets):
        taken = training(
            shape, work.rank, work.precision, max(tokens, longest), longest, checkpointing=again, processes=processes
        )
        if taken <= room:
            return Trainer(tokens, again, taken)
    return None


def server_of(shape: ModelShape, gib: float, work: Work, serve: Precision, sequences: int) -> Server:
    batched = 8192 if gib >= 70 else 2048  # vLLM's defaults, said so that the card's name doesn't matter
    tokens = max(work.max_tokens, int(FILLED * sequences * work.max_tokens))  # vLLM refuses room for less than one
    taken = serving(shape, work.rank, serve, kv_tokens=tokens, sequences=sequences, batched_tokens=batched)
    return Server(serve, sequences, batched, taken)


def halves(most: int, fewest: int) -> Iterator[int]:
    """Example: 64 down to 16: 64, 32, 16."""
    while most >= max(1, fewest):
        yield most
        most //= 2


# Which cards


@dataclass(frozen=True)
class Options:
    """The GPUs, the work, and what is already set."""

    mib: tuple[int, ...]
    """Memory of each GPU in MiB, as printed by `nvidia-smi --query-gpu=memory.total`."""
    base: str = "Qwen/Qwen2.5-7B-Instruct"
    """Model or policy folder, or a hub name; only its config.json is read."""
    quantize: bool = True
    """Train on a 4-bit base."""
    serve: Serve = "auto"
    """What vLLM serves: the 4-bit base (nf4), its unpacked copy (bf16), or whichever fits, the copy if both do
    (auto)."""
    r: int = 16
    """Rank of the adapter."""
    max_tokens: int = 2048
    """Maximum tokens per episode."""
    concurrency: int = 64
    """Episodes the server should play at once."""
    vllm_gpus: str = ""
    """VLLM_GPUS, if set: the number of a GPU."""
    train_gpus: str = ""
    """TRAIN_GPUS, if set: numbers of GPUs, separated by commas."""
    train_processes: int = 0
    """TRAIN_PROCESSES, if set; 0: one per GPU of the trainer."""
    vllm_gpu_memory: float = 0.0
    """VLLM_GPU_MEMORY, if set: vLLM's share of its GPU. Then nothing is planned, and the trainer uses what it finds
    free."""
    train_nodes: int = 0
    """Machines that train, each with these GPUs, while servers run on others. 0: everything runs on this machine."""

    def check(self) -> None:
        check_at_least_one(self, "r", "max_tokens", "concurrency")
        if not 0 <= self.vllm_gpu_memory < 1:
            raise UserError(f"VLLM_GPU_MEMORY={self.vllm_gpu_memory:g} is no share of a GPU; give one such as 0.4")
        if not self.mib:
            raise UserError("nvidia-smi lists no GPU; without one set DEVICE=cpu (docker-compose.cpu.yml)")


def numbers(name: str, text: str, there: int) -> tuple[int, ...]:
    """Example: "0,1" gives (0, 1)."""
    parts = text.split(",") if text else []
    if odd := [part for part in parts if not part.isdecimal() or int(part) >= there]:
        raise UserError(f"there is no GPU {odd[0]} ({name}={text}); give numbers of nvidia-smi, 0 to {there - 1}")
    return tuple(map(int, parts))


def share_out(options: Options) -> tuple[int, tuple[int, ...]]:
    """The server's card and the trainer's: those that were named, else card 0 and the others, or both card 0.

    Of machines that only train or only serve each has all of its cards.
    """
    every = tuple(range(len(options.mib)))
    vllm, train = (numbers(name, getattr(options, name.lower()), len(every)) for name in ("VLLM_GPUS", "TRAIN_GPUS"))
    if len(vllm) > 1:
        raise UserError(f"VLLM_GPUS={options.vllm_gpus}: the stack's server takes one GPU; give one")
    server = next(iter((*vllm, *(number for number in every if number not in train), *train)))
    others = every if options.train_nodes else tuple(number for number in every if number != server)
    return server, train or others or (server,)


def settings(options: Options) -> tuple[dict[str, str], list[str]]:
    """What the services are told, by name, and what to say about it."""
    (vllm, train), told, notes = share_out(options), dict[str, str](), list[str]()
    shared, gpus = vllm in train and not options.train_nodes, ",".join(map(str, train))
    serve, share = options.serve, options.vllm_gpu_memory
    processes = options.train_processes or len(train)
    if processes > len(train):
        raise UserError(f"TRAIN_PROCESSES={processes} takes as many GPUs, and TRAIN_GPUS={gpus} has {len(train)}")
    gib = round(min(options.mib[number] for number in (vllm, *train)) / 1024, 2)
    if share:
        serve = ("nf4" if options.quantize else "bf16") if serve == "auto" else serve
    else:
        work = Work(options.r, "nf4" if options.quantize else "bf16", options.max_tokens, options.concurrency)
        every = processes * max(1, options.train_nodes)
        found = plan(shape_of(options.base), gib, work, serve, shared=shared, processes=every)
        if found is None:
            where = "one for both" if shared else f"one for vLLM and {every} for the trainer"
            raise UserError(
                f"{options.base} does not fit into cards of {gib:.1f} GiB, {where}; take more or larger ones, or a "
                "smaller BASE_MODEL or MAX_TOKENS, or let the two take turns (docs/operations.md), or set "
                "VLLM_GPU_MEMORY and VLLM_ARGS to go without a plan"
            )
        trainer, server = found
        notes.append(
            f"GPUs: of {gib:g} GiB a card the trainer takes {trainer.bytes / GIB:.1f}, vLLM {server.bytes / GIB:.1f}"
        )
        told |= {"PLAN_VLLM_ARGS": server.flags, "PLAN_TRAIN_ARGS": trainer.flags}
        serve, share = server.serve, server.share(gib) if shared else APART
    # A server that restarts wants all of its share, so the trainer's allocator stays out of it.
    left = max(0.01, math.floor(100 * (1 - share - CONTEXT / (gib * GIB))) / 100)
    told |= {
        "VLLM_GPU_MEMORY": f"{share:.2f}", "VLLM_GPUS": str(vllm), "TRAIN_GPUS": gpus,
        "TRAIN_PROCESSES": str(processes), "SERVE": serve, "PLAN_SHARED": "1" if shared else "",
        "PLAN_TRAIN_SHARE": f"{left:.2f}" if shared else "",
    }  # fmt: skip
    return told, [*notes, "GPUs: " + " ".join(f"{name}={value}" for name, value in told.items())]


def main(options: Options) -> None:
    options.check()
    told, notes = settings(options)
    for note in notes:
        say(note, sys.stderr)
    for name, value in told.items():
        print(f"{name}={value}")


if __name__ == "__main__":
    run_script(main, __doc__)
