"""Processes: those that torchrun started, or one by itself: its rank, its device, and what they tell one another.

`rank` and `world` are known before anything is connected; the rest needs `join_processes`, unless the process is alone.
torch is imported by the functions that need it, as options are checked without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, get_args

from forage.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
PATIENCE = timedelta(days=7)  # the others wait while one process plays, or waits for workers to play

Sharding = Literal["none", "zero2", "zero3", "fsdp2"]
"""How processes share a policy."""
Offload = Literal["none", "optimizer", "all"]
"""What stays in the CPU's memory."""
OFFLOADS: dict[str, tuple[Sharding, ...]] = {
    "none": get_args(Sharding), "optimizer": ("zero2", "zero3"), "all": ("zero3",),
}  # fmt: skip


def world() -> int:
    """Number of processes: torchrun, `accelerate launch` and `deepspeed` all set WORLD_SIZE."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def is_first() -> bool:
    return rank() == 0


def check_sharding(sharding: Sharding, sequence_parallel: int = 1, offload: Offload = "none") -> None:
    """Fail before anything is loaded. One process may be sharded too, and so may a 4-bit base."""
    if sequence_parallel > 1 and world() == 1:
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


def join_processes() -> None:
    """Connect the processes that the launcher started, each with its own GPU. Call once, before loading a policy.

    A process that no launcher started becomes a group of one: DeepSpeed and FSDP2 ask for a group.
    """
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    alone: dict[str, Any] = {}
    if world() == 1:
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed reads it
        # In memory, so that there is no port to agree on.
        alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # type: ignore[attr-defined]
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=PATIENCE, **alone)
        return
    local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= gpus:
        raise UserError(f"process {local} of this machine has no GPU, as there are {gpus}; start {gpus} processes")
    torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", local), timeout=PATIENCE, **alone)


def leave_processes() -> None:
    """Take the connections down, once all processes are through.

    Not after an error: NCCL may wait for processes that still work, or are gone. Where one of them failed late, the
    others learn it here, as all_gather goes over gloo.
    """
    import torch.distributed as dist

    all_gather(None)  # one that left early would take down what another still uses
    if dist.is_initialized():
        dist.destroy_process_group()


def process_device() -> torch.device:
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


# Telling one another. Each waits here for all others


@contextmanager
def others_alive() -> Iterator[None]:
    """Say in one line that another process ended while this one waited for it."""
    try:
        yield
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        raise UserError(
            "another training process has ended, and said why if it could (else the system's log knows who killed it); "
            "re-run the same command to resume"
        ) from error


@contextmanager
def first_process_first() -> Iterator[None]:
    """Let the others in once the first process is through: they find what it has made."""
    if not is_first():
        wait_for_all()
    yield
    if is_first():
        wait_for_all()


def wait_for_all() -> None:
    if world() > 1:
        import torch.distributed as dist

        with others_alive():
            dist.barrier()


def first_alone(do: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """What the first process does alone, such as writing files; all get what it returns."""
    sent: list[Any] = [do(*args, **more) if is_first() else None]
    if world() > 1:
        import torch
        import torch.distributed as dist

        with others_alive():
            dist.broadcast_object_list(sent, src=0, device=torch.device("cpu"))
    return sent[0]


def all_gather(value: T) -> list[T]:
    """Every process's value, in the order of the processes."""
    if world() == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * world()
    with others_alive():
        dist.all_gather_object(values, value)
    return values


def all_reduced(tensor: Tensor, operation: str = "sum") -> Tensor:
    """The sum of every process's tensor, or its largest ("max") or smallest ("min") values, as a new tensor."""
    total = tensor.detach().clone()
    if world() > 1:
        import torch.distributed as dist

        with others_alive():
            dist.all_reduce(total, getattr(dist.ReduceOp, operation.upper()))
    return total


def sum_gradients(weights: Sequence[Tensor]) -> None:
    """Give every process the sum of all gradients: those of losses that are parts of the whole batch's mean."""
    if world() == 1:
        return
    import torch

    grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
    flat = all_reduced(torch.cat([grad.flatten() for grad in grads]))
    for weight, grad in zip(weights, torch.split(flat, [weight.numel() for weight in weights]), strict=True):
        weight.grad = grad.view_as(weight).clone()
