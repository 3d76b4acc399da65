"""The update: tokens per second, model FLOPs utilisation and peak memory, by this project's code and by TRL's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.gpu_rows.device import device_name, free_memory, measured, peak_flops
from bench.gpu_rows.episodes import made_episodes, tokens_of, update_flops
from bench.gpu_rows.models import trained_policy
from bench.gpu_rows.scale import Scale
from bench.gpu_rows.within import update_within
from forage.agent.episode import Episode
from forage.grpo.learner import Learner
from forage.grpo.options import LossOptions, UpdateOptions
from forage.grpo.update import TrainingBatch, UpdateContext, pack_episodes, prepare

RATE = 1e-6
# Without the correction for the sampler, which TRL leaves out without vLLM: the loss must be TRL's.
OPTIONS = UpdateOptions(loss=LossOptions(correction="none"))


@dataclass(frozen=True)
class Update:
    """The figures of a timed update."""

    seconds: float
    peak_gib: float
    budget: int
    figures: dict[str, float]


def measure_update(scale: Scale, *, quantized: bool, checkpointing: bool) -> dict[str, Any]:
    """One update of all episodes. Prompts are shared where activations are kept, as in grpo_train.py."""
    policy = trained_policy(scale.policy, quantized=quantized, checkpointing=checkpointing)
    episodes, shared = made_episodes(scale), not checkpointing
    done = timed_update(Learner(policy), prepare(episodes, OPTIONS), scale.budget, shared=shared)
    flops = update_flops(scale.policy, episodes, trained_weights(policy), scale.prompt if shared else 0)
    return speed(episodes, flops, done.seconds, done.peak_gib) | {
        "token_budget": done.budget, "micro_batches": done.figures["micro_batches"],
        "grad_norm": done.figures["grad_norm"], "policy_loss": done.figures["policy_loss"],
    }  # fmt: skip


def speed(episodes: Sequence[Episode], flops: float, seconds: float, peak_gib: float) -> dict[str, Any]:
    """Tokens per second counts the episodes' tokens, however many are computed."""
    most = peak_flops(device_name())
    return {
        "tokens_per_second": tokens_of(episodes) / seconds, "mfu": flops / seconds / most if most else None,
        "peak_gib": peak_gib, "seconds": seconds,
    }  # fmt: skip


def trained_weights(policy: Any) -> int:
    return sum(weight.numel() for weight in policy.parameters() if weight.requires_grad)


def timed_update(learner: Learner, batch: TrainingBatch, budget: int, *, shared: bool) -> Update:
    """Time an update after a warm-up, with the largest budget that memory allows: `budget`, half of it, and so on."""
    longest = max(len(episode.ids) for episode in batch.episodes)
    context, figures = UpdateContext(OPTIONS, RATE, 1.0, shared), {}
    while True:
        try:
            warm_up(learner, batch, context, budget)
            seconds, peak = measured(lambda: figures.update(update_within(budget, learner, batch, context)))  # noqa: B023
            return Update(seconds, peak, budget, figures)
        except torch.OutOfMemoryError:
            if budget <= longest:
                raise
        learner.drop_gradients()  # here, where the error no longer holds the tensors of its frames
        free_memory()
        budget = max(budget // 2, longest)


def warm_up(learner: Learner, batch: TrainingBatch, context: UpdateContext, budget: int) -> None:
    """An update on the largest micro-batch: it loads kernels, fills the allocator, and shows if memory is enough."""
    parts = pack_episodes(batch.episodes, budget, share_prompts=context.share_prompts)
    numbers = sorted(set(max(parts, key=lambda part: part.tokens).sequence_BT.flatten().tolist()))
    part = TrainingBatch(
        [batch.episodes[number] for number in numbers], batch.means_N[numbers], batch.combined_N[numbers],
        batch.advantages_N[numbers],
        batch.keep_N[numbers], 0,
    )  # fmt: skip
    update_within(budget, learner, part, context)
