"""Sampling: LocalEngine against `model.generate`, in two turns with a result between them, all episodes at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.gpu_rows.device import device, measured
from bench.gpu_rows.models import random_model, trained_policy
from bench.gpu_rows.scale import Scale
from forage.engines.base import Request
from forage.engines.local import LocalEngine


def measure_engine(scale: Scale, *, cudnn: bool = True) -> dict[str, Any]:
    """LocalEngine on the base; the second turn computes only what the first left.

    `cudnn`: PyTorch may choose cuDNN's attention, which prepares itself anew for each length; every step has its own.
    """
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    engine = LocalEngine(random_model(scale.policy), scale.episodes)
    prompts, result = made_prompts(scale)
    sampled: list[list[int]] = []

    def play(count: int, tokens: int, name: str) -> None:
        turns = (two_turns(engine, scale, f"{name}{n}", prompts[n], result, tokens) for n in range(count))
        sampled[:] = asyncio.run(together(*turns))

    play(2, 2, "warm-up ")
    seconds, peak = measured(lambda: play(scale.episodes, scale.sampled, "episode "))
    return rate(scale, seconds, peak, sampled)


async def together(*turns: Any) -> list[list[int]]:
    return list(await asyncio.gather(*turns))


async def two_turns(
    engine: LocalEngine, scale: Scale, name: str, prompt: Sequence[int], result: Sequence[int], tokens: int
) -> list[int]:
    ids, sampled = list(prompt), list[int]()
    for turn in range(2):
        request = Request(tuple(ids), tokens, (), seed=turn, episode=name)
        sample = await engine.generate(request)
        ids += [*sample.ids, *result]
        sampled += sample.ids
    engine.release(name)
    return sampled


@torch.no_grad()
def measure_generate(scale: Scale) -> dict[str, Any]:
    """transformers' own loop on the policy with its adapter beside the weights, all sequences in one batch."""
    policy = trained_policy(scale.policy).eval()
    prompts, result = made_prompts(scale)
    sampled: list[list[int]] = []

    def play(count: int, tokens: int) -> None:
        ids_BT: Tensor = torch.tensor(prompts[:count], device=device())
        result_BT: Tensor = torch.tensor([result] * count, device=device())
        new: list[Tensor] = []
        for _ in range(2):
            longer_BT = policy.generate(
                input_ids=ids_BT, attention_mask=torch.ones_like(ids_BT), do_sample=True, temperature=1.0, top_k=0,
                top_p=1.0, min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0,
            )  # fmt: skip
            new.append(longer_BT[:, ids_BT.shape[1] :])
            ids_BT = torch.cat([longer_BT, result_BT], dim=1)
        sampled[:] = torch.cat(new, dim=1).tolist()

    play(2, 2)
    seconds, peak = measured(lambda: play(scale.episodes, scale.sampled))
    return rate(scale, seconds, peak, sampled)


def rate(scale: Scale, seconds: float, peak_gib: float, sampled: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Tokens per second counts sampled tokens; each episode must have all of them."""
    if {len(ids) for ids in sampled} != {2 * scale.sampled}:
        raise ValueError(f"not {2 * scale.sampled} tokens in each episode")
    tokens = sum(map(len, sampled))
    return {"tokens_per_second": tokens / seconds, "peak_gib": peak_gib, "seconds": seconds, "sampled": tokens}


def made_prompts(scale: Scale) -> tuple[list[list[int]], list[int]]:
    """A prompt for each episode, the same within a group, and a result for the second turn."""
    draws, vocabulary = random.Random(0), range(2, scale.policy["vocab_size"])
    prompts = [draws.choices(vocabulary, k=scale.prompt) for _ in range(scale.groups)]
    return [prompt for prompt in prompts for _ in range(scale.group)], draws.choices(vocabulary, k=scale.result)
