"""Processes: those that torchrun started share the rows of an update; one by itself does all of them.

Every process holds the model and the same weights. Sampling, scoring and gradients are shared out by rows; what is
computed of them is put together again, so that all processes know the whole batch, and two equal one up to rounding.
Only the first process writes and prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def count() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def is_first() -> bool:
    return rank() == 0


def share(rows: int) -> slice:
    """This process's part of so many rows. Example, the second of two processes: 5 rows give 2 to 4."""
    return slice(rows * rank() // count(), rows * (rank() + 1) // count())


def gathered(values: Sequence[T]) -> list[T]:
    """The values of all processes, in the order of their shares."""
    if count() == 1:
        return list(values)
    parts: list[Any] = [None] * count()
    dist.all_gather_object(parts, list(values))
    return [value for part in parts for value in part]


def gathered_rows(tensor: Tensor) -> Tensor:
    """The rows of all processes, in the order of their shares."""
    if count() == 1:
        return tensor
    return torch.cat(gathered([tensor.cpu()])).to(tensor.device)


def largest(number: int) -> int:
    return max(gathered([number]))


def summed(tensor: Tensor) -> Tensor:
    """The sum of every process's tensor."""
    if count() == 1:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def sum_gradients(weights: Sequence[Tensor]) -> None:
    """Give every process the sum of all gradients: those of losses that are parts of the whole batch's mean."""
    if count() == 1:
        return
    grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    for weight, grad in zip(weights, torch.split(flat, [weight.numel() for weight in weights]), strict=True):
        weight.grad = grad.view_as(weight).clone()


def told_by_first(value: T) -> T:
    """The first process's value, for all."""
    return gathered([value])[0]


@contextmanager
def first_process_first() -> Iterator[None]:
    """The first process runs the block before the others do, which then find what it wrote."""
    if not is_first():
        dist.barrier()
    yield
    if is_first() and count() > 1:
        dist.barrier()


@contextmanager
def first_alone_prints() -> Iterator[None]:
    """The other processes would say the same."""
    if is_first():
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield
