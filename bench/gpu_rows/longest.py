"""The longest episode that trains on cards of 24, 48 and 80 GiB, which PyTorch's memory limit stands in for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.gpu_rows.device import free_memory, limit_memory
from bench.gpu_rows.episodes import made_episode
from bench.gpu_rows.models import trained_policy
from bench.gpu_rows.scale import Scale
from bench.gpu_rows.update import OPTIONS, RATE
from bench.gpu_rows.within import update_within
from forage.grpo.learner import Learner
from forage.grpo.update import TrainingBatch, UpdateContext

CARDS_GIB = (24, 48, 80)
HALVINGS = 2


def measure_longest(scale: Scale, *, quantized: bool) -> Iterator[dict[str, Any]]:
    """Tokens by card, up to the model's positions. On a CPU nothing limits memory: there the cards are alike."""
    learner = Learner(trained_policy(scale.policy, quantized=quantized, checkpointing=True))
    most, found = scale.policy["max_position_embeddings"], 0
    figures: dict[str, Any] = {"most_tried": most}
    for gib in CARDS_GIB:
        if torch.cuda.is_available():
            limit_memory(gib)
        found = longest(lambda tokens: fits(learner, scale, tokens), found, scale.search_from, most)
        figures[f"tokens_in_{gib}_gib"] = found
        yield figures


def longest(fits: Callable[[int], bool], known: int, start: int, most: int, halvings: int = HALVINGS) -> int:
    """About the greatest length that fits, up to `most`: doubling, then halving the gap. `known` is known to fit.

    Example: 11,000 fit, from 4,096: 4,096 and 8,192 fit, 16,384 don't, 12,288 don't, 10,240 do: 10,240.
    """
    low, high = known, min(most, 2 * known or start)
    while low < most and fits(high):
        low, high = high, min(2 * high, most)
    for _ in range(halvings if low < most else 0):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fits(learner: Learner, scale: Scale, tokens: int) -> bool:
    """Whether an update on one episode of so many tokens stays within memory."""
    episode = made_episode(scale, [place % scale.policy["vocab_size"] for place in range(tokens)])
    one = torch.ones(1)
    batch = TrainingBatch([episode], one.double().numpy(), one.double().numpy(), one, one, 0)
    try:
        update_within(tokens, learner, batch, UpdateContext(OPTIONS, RATE, 1.0, share_prompts=False))
        return True
    except torch.OutOfMemoryError:
        pass
    learner.drop_gradients()  # here, where the error no longer holds the tensors of its frames
    free_memory()
    return False
