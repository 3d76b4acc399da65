"""What fits into a GPU, and the settings that make it fit, from a model's configuration alone.

    python -m forage.policy.memory --base Qwen/Qwen2.5-7B-Instruct --gpu-gib 24

Prints a table of GiB by stage, then how trainer and vLLM server share the card, with the flags to give. Training is
counted as the code does it and was checked against measured peaks on CPUs; what vLLM and CUDA take is counted from
vLLM's code and partly assumed. Nothing is loaded: no weights, no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from forage.cli import run_script
from forage.errors import UserError, check_at_least_one
from forage.policy.footprint import (
    GIB,
    SERVED_NF4,
    Batch,
    Footprint,
    Lora,
    Precision,
    kv_bytes,
    local_sampling,
    merging,
    resident,
    serving,
    sleeping,
    slots_within,
    training,
    weight_bytes,
)
from forage.policy.shapes import ModelShape, shape_of

Serve = Literal["auto", "nf4", "bf16"]
Arrangement = Literal["awake", "asleep", "apart"]
# Kept free of each card: the allocators' fragments, and errors of what is assumed about vLLM and CUDA.
RESERVE = 0.08
KINDS: tuple[Precision, ...] = ("nf4", "bf16")
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
class TrainingSettings:
    """The largest micro-batch that fits, and what it takes."""

    token_budget: int
    gradient_checkpointing: bool
    processes: int
    footprint: Footprint

    @property
    def flags(self) -> str:
        again = "--gradient-checkpointing" if self.gradient_checkpointing else "--no-gradient-checkpointing"
        cards = f" --sharding zero3 on {self.processes} cards" if self.processes > 1 else ""
        return f"--token-budget {self.token_budget} {again}{cards}"


@dataclass(frozen=True)
class ServerSettings:
    """What the server is told, and what it takes."""

    serve: Precision
    sequences: int
    max_model_len: int
    batched_tokens: int
    share: float
    """The part of the card's memory that vLLM takes."""
    kv_cache_bytes: int
    footprint: Footprint

    @property
    def flags(self) -> str:
        return (
            f"--max-model-len {self.max_model_len} --max-num-seqs {self.sequences} --max-num-batched-tokens "
            f"{self.batched_tokens} --gpu-memory-utilization {self.share:.2f}"
        )


@dataclass(frozen=True)
class MemoryPlan:
    """How trainer and server share cards of one size."""

    gib: float
    arrangement: Arrangement
    """awake: one card, both at once. asleep: one card, the server sleeps during updates. apart: a card each."""
    training: TrainingSettings
    server: ServerSettings

    @property
    def token_budget(self) -> int:
        return self.training.token_budget

    @property
    def gradient_checkpointing(self) -> bool:
        return self.training.gradient_checkpointing

    @property
    def vllm_share(self) -> float:
        return self.server.share

    @property
    def serve(self) -> Precision:
        return self.server.serve

    @property
    def cards(self) -> int:
        return self.training.processes + (1 if self.arrangement == "apart" else 0)


def plan(shape: ModelShape, gib: float, work: Work, serve: Serve = "auto", *, apart: bool = False) -> MemoryPlan:
    """One card for both if they fit, without sleep if possible; in bf16 if possible, which vLLM serves faster.

    `apart`: a card each, whatever would fit.
    """
    kinds = KINDS[::-1] if serve == "auto" else (serve,)
    if work.precision == "bf16":
        kinds = ("bf16",)  # a base that is trained in bf16 is served as it is
    for arrange in (apart_from,) if apart else (awake, asleep, apart_from):
        for kind in kinds:
            found = arrange(shape, gib, work, kind)
            if found:
                return found
    smallest = server_settings(shape, gib, work, kinds[-1], 1).footprint
    raise UserError(
        f"no plan fits cards of {gib:g} GiB: training takes {least(shape, work).total / GIB:.1f} GiB at one episode of "
        f"{work.max_tokens} tokens, a server {smallest.total / GIB:.1f}; lower --max-tokens, or take a smaller model "
        "or larger cards"
    )


def usable(gib: float) -> float:
    """Bytes of a card that a plan may use."""
    return gib * GIB * (1 - RESERVE)


def least(shape: ModelShape, work: Work) -> Footprint:
    """Training at its smallest: one episode at a time, activations recomputed."""
    return training(shape, work.lora, work.precision, Batch(1, work.max_tokens), checkpointing=True)


# Three ways to share


def awake(shape: ModelShape, gib: float, work: Work, serve: Precision) -> MemoryPlan | None:
    """Both at once. Room goes to the episodes played at once first: playing takes most of a step's time."""
    for sequences in halves(work.sequences, min(work.sequences, MIN_SEQUENCES)):
        server = server_settings(shape, gib, work, serve, sequences)
        trainer = training_settings(shape, work, usable(gib) - server.footprint.total)
        if trainer:
            return MemoryPlan(gib, "awake", trainer, server)
    return None


def asleep(shape: ModelShape, gib: float, work: Work, serve: Precision) -> MemoryPlan | None:
    """In turns: the server sleeps during updates, and the trainer keeps only its weights while episodes are played."""
    trainer = training_settings(shape, work, usable(gib) - sleeping().total)
    room = usable(gib) - resident(shape, work.lora, work.precision).total
    server = largest_server(shape, gib, work, serve, room, min(work.sequences, MIN_SEQUENCES))
    return MemoryPlan(gib, "asleep", trainer, server) if trainer and server else None


def apart_from(shape: ModelShape, gib: float, work: Work, serve: Precision) -> MemoryPlan | None:
    """A card for the server, and as many as needed for the trainer."""
    server = largest_server(shape, gib, work, serve, usable(gib), 1)
    fitting = (training_settings(shape, work, usable(gib), processes) for processes in CARDS)
    trainer = next((found for found in fitting if found), None)
    return MemoryPlan(gib, "apart", trainer, server) if trainer and server else None


def training_settings(
    shape: ModelShape, work: Work, room: float, processes: int = 1, *, budget: int | None = None,
    checkpointing: bool | None = None,
) -> TrainingSettings | None:  # fmt: skip
    """The largest micro-batch that fits, of whole episodes; activations are kept if that leaves room for one.

    Recomputing them costs a third of the speed. A `budget` or `checkpointing` that is given stays.
    """
    budgets = (budget,) if budget else (*(size for size in BUDGETS if size > work.max_tokens), work.max_tokens)
    for again in (False, True) if checkpointing is None else (checkpointing,):
        for tokens in budgets:
            footprint = widest_update(shape, work, tokens, checkpointing=again, processes=processes)
            if footprint.total <= room:
                return TrainingSettings(tokens, again, processes, footprint)
    return None


def widest_update(
    shape: ModelShape, work: Work, budget: int, *, checkpointing: bool, processes: int = 1
) -> Footprint:  # fmt: skip
    """An update with micro-batches of so many tokens, whether prompts are shared or not."""
    tried = (
        training(shape, work.lora, work.precision, batch, checkpointing=checkpointing, processes=processes)
        for batch in (Batch.of(budget, work.max_tokens, shared=shared) for shared in (False, True))
    )
    return max(tried, key=lambda footprint: footprint.total)


def largest_server(
    shape: ModelShape, gib: float, work: Work, serve: Precision, room: float, fewest: int
) -> ServerSettings | None:
    """As many episodes at once as fit, up to those wanted."""
    tried = (server_settings(shape, gib, work, serve, sequences) for sequences in halves(work.sequences, fewest))
    return next((server for server in tried if server.footprint.total <= room), None)


def server_settings(shape: ModelShape, gib: float, work: Work, serve: Precision, sequences: int) -> ServerSettings:
    batched = 8192 if gib >= 70 else 2048  # vLLM's defaults, said so that the card's name doesn't matter
    tokens = max(work.max_tokens, int(FILLED * sequences * work.max_tokens))  # vLLM refuses room for less than one
    footprint = serving(shape, work.lora, serve, kv_tokens=tokens, sequences=sequences, batched_tokens=batched)
    share = math.ceil(100 * footprint.total / (gib * GIB)) / 100
    return ServerSettings(
        serve, sequences, work.max_tokens, batched, share, tokens * kv_bytes(shape), footprint
    )  # fmt: skip


def halves(most: int, fewest: int) -> Iterator[int]:
    """Example: 64 down to 16: 64, 32, 16."""
    while most >= max(1, fewest):
        yield most
        most //= 2


def longest_episode(shape: ModelShape, gib: float, work: Work) -> int:
    """Most tokens of an episode that trains on a card of its own, with activations recomputed; 0: none."""
    low, high = 0, 1_048_576
    while high - low > 64:
        middle = (low + high) // 2
        taken = training(shape, work.lora, work.precision, Batch(1, middle), checkpointing=True)
        low, high = (middle, high) if taken.total <= usable(gib) else (low, middle)
    return low


# The table


def stages(shape: ModelShape, work: Work, found: MemoryPlan | None, gib: float) -> dict[str, Footprint]:
    """What each stage takes on the GPU; the merge works in the host's memory."""
    sequences = found.server.sequences if found else 1
    served = {f"vLLM {kind}": server_settings(shape, gib, work, kind, sequences).footprint for kind in KINDS}
    return {
        "warm start, plays": warm_start(shape, work, gib),
        "update": found.training.footprint if found else least(shape, work),
        "in process, merged": engine(shape, work, usable(gib), merged=True),
        "in process, beside": engine(shape, work, usable(gib), merged=False),
        **served,
        "merge (host)": merging(shape),
        **together(shape, gib, work),
    }


def engine(shape: ModelShape, work: Work, room: float, *, merged: bool) -> Footprint:
    """LocalEngine with as many slots as fit, at least one."""
    empty = local_sampling(shape, work.lora, work.precision, slots=0, longest=work.max_tokens, merged=merged)
    slots = slots_within(
        room - empty.weights - empty.context, shape, work.lora, work.precision,
        wanted=SLOTS, longest=work.max_tokens, merged=merged,
    )  # fmt: skip
    return local_sampling(
        shape, work.lora, work.precision, slots=max(1, slots), longest=work.max_tokens, merged=merged
    )  # fmt: skip


def warm_start(shape: ModelShape, work: Work, gib: float) -> Footprint:
    """sft_train.py, which plays its probes (--eval-questions) with the policy in training, between updates."""
    trainer = training_settings(shape, work, usable(gib))
    updating = trainer.footprint if trainer else least(shape, work)
    kept = resident(shape, work.lora, work.precision)
    # The policy is there already: the engine adds what it samples with.
    player = replace(
        engine(shape, work, usable(gib) - kept.optimizer, merged=False), weights=0, adapters=0, context=0
    )  # fmt: skip
    return max(updating, kept + player, key=lambda footprint: footprint.total)


def together(shape: ModelShape, gib: float, work: Work) -> dict[str, Footprint]:
    """Trainer and server on one card, awake and in turns; where it doesn't fit, at its smallest."""
    smallest = server_settings(shape, gib, work, "nf4" if work.precision == "nf4" else "bf16", 1).footprint
    kinds = KINDS[::-1] if work.precision == "nf4" else ("bf16",)
    both, turns = (
        next((found for kind in kinds if (found := arrange(shape, gib, work, kind))), None)
        for arrange in (awake, asleep)
    )
    kept, updating = (
        resident(shape, work.lora, work.precision),
        turns.training.footprint if turns else least(shape, work),
    )
    return {
        "both awake": both.training.footprint + both.server.footprint if both else least(shape, work) + smallest,
        "update, vLLM asleep": updating + sleeping(),
        "playing, trainer idle": kept + (turns.server.footprint if turns else smallest),
    }


ROWS = {
    "weights": "weights", "adapters": "adapters", "gradients": "gradients", "optimizer": "AdamW",
    "activations": "activations", "dequantized": "unpacked weight", "logits": "logits",
    "kv_cache": "keys and values", "context": "CUDA and its graphs",
}  # fmt: skip


def print_table(taken: dict[str, Footprint], gib: float, name: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{name}, GiB at each stage's peak", box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for stage in taken:
        table.add_column(stage, justify="right", max_width=10)
    for row, title in ROWS.items():
        sizes = [getattr(footprint, row) / GIB for footprint in taken.values()]
        table.add_row(title, *(f"{size:.2f}" if size else "" for size in sizes))
    table.add_section()
    table.add_row("total", *(f"{footprint.total / GIB:.2f}" for footprint in taken.values()))
    table.add_row(f"fits {gib:g} GiB", *(verdict(stage, taken[stage], gib) for stage in taken))
    Console(width=138).print(table)


def verdict(stage: str, footprint: Footprint, gib: float) -> str:
    if "host" in stage:
        return ""
    return "yes" if footprint.total <= usable(gib) else "NO"


HOW = {
    "awake": "one card for trainer and server, both awake",
    "asleep": "one card for trainer and server in turns: the server sleeps during updates",
    "apart": "a card for the server, and the trainer on its own",
}


def advice(found: MemoryPlan, shape: ModelShape, work: Work) -> str:
    """The flags to give."""
    server, longest = found.server, longest_episode(shape, found.gib, work)
    host = weight_bytes(shape, server.serve, SERVED_NF4) / GIB
    asleep_needs = [
        "  in turns   grpo_train.py --engine vllm --vllm-sleep; vLLM --enable-sleep-mode, with VLLM_SERVER_DEV_MODE=1",
        f"             asleep, vLLM keeps its weights in {host:.1f} GiB of the host's memory",
    ]
    return "\n".join([
        f"{HOW[found.arrangement]} ({found.cards} of {found.gib:g} GiB, of which {RESERVE:.0%} stay free)",
        f"  training   {found.training.flags}",
        f"  base       --serve {server.serve}",
        f"  vLLM       {server.flags}",
        f"             or, instead of the share: --kv-cache-memory-bytes {server.kv_cache_bytes}",
        *(asleep_needs if found.arrangement == "asleep" else []),
        f"  longest episode that trains on a card of its own: {longest:,} tokens",
    ])  # fmt: skip


# The command


@dataclass(frozen=True)
class Options:
    """Model, card and work."""

    base: str = "Qwen/Qwen2.5-7B-Instruct"
    """Model or policy folder, a known model, or a hub name; only its config.json is read."""
    gpu_gib: float = 24.0
    """Memory of a card. What nvidia-smi calls 24564MiB is 24."""
    quantize: bool = True
    """Train over a 4-bit base."""
    serve: Serve = "auto"
    """What vLLM serves: the 4-bit base, its dequantised copy, or whichever fits."""
    r: int = 16
    """Rank of the adapter."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Layers that it changes, as for create_lora_model.py."""
    max_tokens: int = 2048
    """Most tokens of an episode."""
    concurrency: int = 64
    """Episodes that the server should play at once."""
    apart: bool = False
    """Plan a card for the server and others for the trainer."""
    json: bool = False
    """Print the plan as JSON instead."""

    def check(self) -> None:
        check_at_least_one(self, "r", "max_tokens", "concurrency")
        if self.gpu_gib <= 0:
            raise UserError(f"--gpu-gib {self.gpu_gib:g} must be over 0")

    def work(self, shape: ModelShape) -> Work:
        targets = () if self.target_modules == ("all-linear",) else self.target_modules
        odd = [name for name in targets if name not in shape.linears]
        if odd:
            raise UserError(
                f"--target-modules {odd[0]} is no linear layer; give all-linear or {' '.join(shape.linears)}"
            )
        precision: Precision = "nf4" if self.quantize else "bf16"
        return Work(Lora(self.r, targets), precision, self.max_tokens, self.concurrency)


def main(options: Options) -> None:
    options.check()
    shape = shape_of(options.base)
    work, gib = options.work(shape), options.gpu_gib
    if options.json:
        print(json.dumps(asdict(plan(shape, gib, work, options.serve, apart=options.apart)), indent=1))
        return
    try:
        found = plan(shape, gib, work, options.serve, apart=options.apart)
    except UserError:
        print_table(stages(shape, work, None, gib), gib, options.base)
        raise
    print_table(stages(shape, work, found, gib), gib, options.base)
    print(advice(found, shape, work))


if __name__ == "__main__":
    run_script(main, __doc__)
