"""The process group at world size 1: by nccl on a GPU, by gloo on a CPU; an update by the sharded learner in it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from bench.gpu_rows.device import device, synchronize
from bench.gpu_rows.episodes import made_episodes
from bench.gpu_rows.models import trained_policy
from bench.gpu_rows.scale import Scale
from bench.gpu_rows.update import OPTIONS, RATE
from bench.gpu_rows.within import update_within
from forage.grpo.learner import Learner
from forage.grpo.sharding import ShardedLearner
from forage.grpo.update import UpdateContext, prepare
from forage.processes import Sharding


def measure_processes(scale: Scale, *, sharding: Sharding) -> dict[str, Any]:
    """The norm of the gradient by a learner in the group, beside that by a plain one."""
    smaller = replace(scale, policy=scale.small)
    with one_process() as figures:
        total = torch.ones(1024, device=device())
        dist.all_reduce(total)
        plain = gradient_norm(smaller, Learner(trained_policy(scale.small)))
        ours = gradient_norm(smaller, make_learner(trained_policy(scale.small), sharding))
        return figures | {
            "backend": dist.get_backend(), "all_reduced": float(total.sum()), "grad_norm": ours,
            "plain_grad_norm": plain,
        }  # fmt: skip


@contextmanager
def one_process() -> Iterator[dict[str, Any]]:
    """A process group of this process alone, with the backends that forage/processes.py asks for."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine without a network has no other
    started, gpu = time.perf_counter(), torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1,
            device_id=device() if gpu else None,
        )  # fmt: skip
        try:
            yield {"start_seconds": time.perf_counter() - started}
        finally:
            synchronize()
            dist.destroy_process_group()


def make_learner(policy: Any, sharding: Sharding) -> ShardedLearner:
    return ShardedLearner(policy, sharding=sharding)


def gradient_norm(scale: Scale, learner: Learner) -> float:
    """The norm in an update with the first group's episodes."""
    batch = prepare(made_episodes(scale)[: scale.group], OPTIONS)
    context = UpdateContext(OPTIONS, RATE, 1.0, share_prompts=False)
    return update_within(scale.budget, learner, batch, context)["grad_norm"]
