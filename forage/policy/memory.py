"""What fits into GPUs, and the settings that make it fit, from a model's configuration alone.

    python -m forage.policy.memory --mib 24564 --base Qwen/Qwen2.5-7B-Instruct

Prints lines NAME=VALUE, which `scripts/stack.sh prepare` keeps for its services, and on stderr how trainer and vLLM
server share the cards. What is set stays. In the stack the two are separate processes, so on one card both must fit
at the same time. Training is counted as the code does it and was
checked against measured peaks on CPUs; what vLLM and CUDA take is counted from vLLM's code and partly assumed. Nothing
is loaded: no weights, no torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from forage.cli import run_script
from forage.errors import UserError, check_at_least_one
from forage.policy.footprint import GIB, Batch, Lora, ModelShape, Precision, serving, shape_of, training

Serve = Literal["auto", "nf4", "bf16"]
# Kept free of each card: the allocators' fragments, and errors of what is assumed about vLLM and CUDA.
RESERVE = 0.08
APART = 0.9  # share of a card of its own that vLLM takes, its default
BUDGETS = (16384, 8192, 4096, 2048, 1024)
CARDS = (1, 2, 4, 8)
# Sharing a card is worth it only if the server plays this many episodes at once.
MIN_SEQUENCES = 16
# Episodes that are played at the same time are at different turns: on average they have half of their greatest length.
FILLED = 0.5
SLOTS = 64  # most episodes that LocalEngine plays at once


@dataclass(frozen=True)
class Work:
    """What is trained and played."""

    lora: Lora = field(default_factory=Lora)
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
    processes: int
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
    shape: ModelShape, gib: float, work: Work, serve: Serve = "auto", *, shared: bool
) -> tuple[Trainer, Server] | None:
    """What fits one card for both, or a card each; in bf16 if possible, which vLLM serves faster.

    With as many episodes at once as possible: playing takes most of a step. A base that is trained in bf16 is served as
    it is.
    """
    room, fewest = usable(gib), min(work.sequences, MIN_SEQUENCES) if shared else 1
    for kind, sequences in product(served_as(work, serve), halves(work.sequences, fewest)):
        server = server_of(shape, gib, work, kind, sequences)
        left = room - (server.bytes if shared else 0)
        fitting = (trainer_within(shape, work, left, cards) for cards in ((1,) if shared else CARDS))
        if server.bytes <= room and (trainer := next(filter(None, fitting), None)):
            return trainer, server
    return None


def served_as(work: Work, serve: Serve) -> tuple[Precision, ...]:
    if work.precision == "bf16" or serve == "bf16":
        return ("bf16",)
    return ("bf16", "nf4") if serve == "auto" else ("nf4",)


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
    budgets = (budget,) if budget else (*(size for size in BUDGETS if size > work.max_tokens), work.max_tokens)
    for again, tokens in product((False, True) if checkpointing is None else (checkpointing,), budgets):
        batches = (Batch.of(tokens, work.max_tokens, shared=shared) for shared in (False, True))
        taken = max(
            training(shape, work.lora, work.precision, batch, checkpointing=again, processes=processes)
            for batch in batches
        )
        if taken <= room:
            return Trainer(tokens, again, processes, taken)
    return None


def server_of(shape: ModelShape, gib: float, work: Work, serve: Precision, sequences: int) -> Server:
    batched = 8192 if gib >= 70 else 2048  # vLLM's defaults, said so that the card's name doesn't matter
    tokens = max(work.max_tokens, int(FILLED * sequences * work.max_tokens))  # vLLM refuses room for less than one
    taken = serving(shape, work.lora, serve, kv_tokens=tokens, sequences=sequences, batched_tokens=batched)
    return Server(serve, sequences, batched, taken)


def halves(most: int, fewest: int) -> Iterator[int]:
    """Example: 64 down to 16: 64, 32, 16."""
    while most >= max(1, fewest):
        yield most
        most //= 2


# Which cards


@dataclass(frozen=True)
class Options:
    """The machine's cards, the work, and what was set."""

    mib: tuple[int, ...]
    """Memory of each card, as `nvidia-smi --query-gpu=memory.total` says it."""
    base: str = "Qwen/Qwen2.5-7B-Instruct"
    """Model or policy folder, or a hub name; only its config.json is read."""
    quantize: bool = True
    """Train over a 4-bit base."""
    serve: Serve = "auto"
    """What vLLM serves: the 4-bit base, its unpacked copy, or whichever fits."""
    r: int = 16
    """Rank of the adapter."""
    max_tokens: int = 2048
    """Most tokens of an episode."""
    concurrency: int = 64
    """Episodes that the server should play at once."""
    vllm_gpus: str = ""
    """VLLM_GPUS, if set: the number of a card."""
    train_gpus: str = ""
    """TRAIN_GPUS, if set: numbers of cards, separated by commas."""
    train_processes: int = 0
    """TRAIN_PROCESSES, if set."""
    vllm_gpu_memory: float = 0.0
    """VLLM_GPU_MEMORY, if set; then nothing is planned, and the trainer takes what it finds free."""
    train_nodes: int = 0
    """Machines that train, each with such cards, while servers run on others; 0: all of it is on this machine."""

    def check(self) -> None:
        check_at_least_one(self, "r", "max_tokens", "concurrency")
        if not 0 <= self.vllm_gpu_memory < 1:
            raise UserError(f"VLLM_GPU_MEMORY={self.vllm_gpu_memory:g} is no share of a GPU; give one such as 0.4")
        if not self.mib:
            raise UserError("nvidia-smi lists no GPU; without one set DEVICE=cpu (docker-compose.cpu.yml)")


@dataclass(frozen=True)
class Cards:
    """Which cards the two have."""

    vllm: tuple[int, ...]
    train: tuple[int, ...]
    shared: bool


def numbers(name: str, text: str, there: int) -> tuple[int, ...]:
    """Example: "0,1" gives (0, 1)."""
    parts = text.split(",") if text else []
    if odd := [part for part in parts if not part.isdecimal() or int(part) >= there]:
        raise UserError(f"there is no GPU {odd[0]} ({name}={text}); give numbers of nvidia-smi, 0 to {there - 1}")
    return tuple(map(int, parts))


def share_out(options: Options, needed: int) -> Cards:
    """The cards that were named; else card 0 for the server, and for the trainer as many of the others as it needs."""
    every = tuple(range(len(options.mib)))
    vllm, train = (numbers(name, getattr(options, name.lower()), len(every)) for name in ("VLLM_GPUS", "TRAIN_GPUS"))
    if len(vllm) > 1:
        raise UserError(f"VLLM_GPUS={options.vllm_gpus}: the stack's server takes one GPU; give one")
    if options.train_nodes:  # whatever a machine has is for what runs on it
        return Cards(vllm or train[:1] or (0,), train or every, shared=False)
    vllm = vllm or tuple(number for number in every if number not in train)[:1] or train[:1]
    free = tuple(number for number in every if number not in vllm)
    train = train or free[: max(needed, options.train_processes)] or vllm[:1]
    return Cards(vllm, train, shared=bool(set(vllm) & set(train)))


def planned(options: Options, cards: Cards) -> tuple[Trainer, Server, float]:
    """What to do with the cards, and their GiB."""
    work = Work(Lora(options.r), "nf4" if options.quantize else "bf16", options.max_tokens, options.concurrency)
    gib = round(min(options.mib[number] for number in (*cards.vllm, *cards.train)) / 1024, 2)
    found = plan(shape_of(options.base), gib, work, options.serve, shared=cards.shared)
    if found is None:
        what = "do not hold both vLLM and trainer" if cards.shared else "hold vLLM or the trainer not even alone"
        raise UserError(
            f"{options.base}: cards of {gib:.1f} GiB {what}; take more or larger ones, or a smaller BASE_MODEL or "
            "MAX_TOKENS, or let the two take turns (docs/operations.md)"
        )
    return *found, gib


def settings(options: Options) -> tuple[dict[str, str], list[str]]:
    """What the services are told, by name, and what to say about it."""
    cards, told, notes = share_out(options, 1), dict[str, str](), list[str]()
    serve, share = options.serve, options.vllm_gpu_memory
    if share:
        serve = ("nf4" if options.quantize else "bf16") if serve == "auto" else serve
    else:
        try:
            trainer, server, gib = planned(options, cards)
        except UserError as error:
            raise UserError(f"{error}; or set VLLM_GPU_MEMORY and VLLM_ARGS to go without a plan") from error
        cards, serve = share_out(options, trainer.processes), server.serve
        if (has := len(cards.train) * max(1, options.train_nodes)) < trainer.processes:
            raise UserError(
                f"training {options.base} takes {trainer.processes} cards of {gib:.1f} GiB besides vLLM's, and has "
                f"{has}; take a smaller BASE_MODEL or MAX_TOKENS"
            )
        notes.append(
            f"GPUs: of {gib:g} GiB a card the trainer takes {trainer.bytes / GIB:.1f}, vLLM {server.bytes / GIB:.1f}"
        )
        told |= {"PLAN_VLLM_ARGS": server.flags, "PLAN_TRAIN_ARGS": trainer.flags}
        share = server.share(gib) if cards.shared else APART
    processes = options.train_processes or len(cards.train)
    if processes > len(cards.train):
        raise UserError(
            f"TRAIN_PROCESSES={processes} takes as many GPUs, and TRAIN_GPUS={text(cards.train)} has {len(cards.train)}"
        )
    told |= {
        "VLLM_GPU_MEMORY": f"{share:.2f}", "VLLM_GPUS": text(cards.vllm), "TRAIN_GPUS": text(cards.train),
        "TRAIN_PROCESSES": str(processes), "SERVE": serve, "PLAN_SHARED": "1" if cards.shared else "",
    }  # fmt: skip
    idle = set(range(len(options.mib))) - set(cards.vllm) - set(cards.train[:processes])
    if idle:
        notes.append(f"GPU {text(tuple(sorted(idle)))} stays idle; TRAIN_GPUS and TRAIN_PROCESSES would use it")
    return told, [*notes, "GPUs: " + " ".join(f"{name}={value}" for name, value in told.items())]


def text(cards: tuple[int, ...]) -> str:
    return ",".join(str(number) for number in cards)


def main(options: Options) -> None:
    options.check()
    told, notes = settings(options)
    for note in notes:
        print(note, file=sys.stderr)
    for name, value in told.items():
        print(f"{name}={value}")


if __name__ == "__main__":
    run_script(main, __doc__)
