"""How far log-probabilities are apart: this device in bf16 from the CPU in fp32, and the sampler from the trainer."""

from __future__ import annotations

import asyncio
import copy
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.gpu_rows.device import device
from bench.gpu_rows.models import random_model
from bench.gpu_rows.scale import Scale
from forage.engines.base import Request, Sample
from forage.engines.local import LocalEngine
from forage.grpo.options import LossOptions
from forage.policy.logprobs import token_logprobs
from forage.policy.packing import TokenBatch, pack, values_like

SEQUENCES, PROMPT = 8, 16
PEAK = 4.0  # the last norm's weight: logits then deviate by 4, and a token's entropy is about 3 nats, as in real models


@dataclass(frozen=True)
class Sampled:
    """A prompt with what LocalEngine continued it by."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]


class RoundedHead(nn.Module):
    """An output layer whose logits are rounded to its weight's type; token_logprobs and LocalEngine keep them fp32."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.weight = head.weight

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden, self.weight)


def measure_agreement(scale: Scale) -> Iterator[dict[str, Any]]:
    """Figures after each comparison. Tokens are the model's own, so that they are as likely as in training."""
    model = random_model(scale.small)
    model.get_decoder().norm.weight.data.fill_(PEAK)
    exact = copy.deepcopy(model).to("cpu", torch.float32)
    figures: dict[str, Any] = {}
    own = model.lm_head
    for head in ("bf16", "fp32"):
        model.lm_head = RoundedHead(own) if head == "bf16" else own
        sequences = sample(model, scale)
        model.set_attn_implementation("sdpa")  # LocalEngine had set its own
        [batch] = pack(sequences, SEQUENCES * (PROMPT + scale.compared))
        trainer_BT, exact_BT = scores(model, batch), scores(exact, batch)
        sampler_BT = values_like(batch, [sequence.logprobs for sequence in sequences])
        chosen = batch.sampled_BT.bool()
        figures |= {
            f"{head}_head_trainer_to_fp32_cpu": apart(trainer_BT[chosen], exact_BT[chosen]),
            f"{head}_head_sampler_to_trainer": apart(sampler_BT[chosen], trainer_BT[chosen]),
        }
        yield figures
    fp32_BT = scores(copy.deepcopy(exact).to(device()), batch)
    yield figures | {
        "all_fp32_to_fp32_cpu": apart(fp32_BT[chosen], exact_BT[chosen]), "tokens": int(chosen.sum()),
        "mean_logprob": float(exact_BT[chosen].mean()),
    }  # fmt: skip


def sample(model: Any, scale: Scale) -> list[Sampled]:
    """LocalEngine continues random prompts."""
    draws, engine = random.Random(0), LocalEngine(model, SEQUENCES)
    prompts = [tuple(draws.choices(range(scale.small["vocab_size"]), k=PROMPT)) for _ in range(SEQUENCES)]
    requests = [Request(prompt, scale.compared, (), seed) for seed, prompt in enumerate(prompts)]

    async def play() -> Sequence[Sample]:
        return await asyncio.gather(*map(engine.generate, requests))

    return [
        Sampled(
            prompt + found.ids, (0,) * PROMPT + (1,) * len(found.ids), (0.0,) * PROMPT + found.logprobs
        )
        for prompt, found in zip(prompts, asyncio.run(play()), strict=True)
    ]  # fmt: skip


@torch.no_grad()
def scores(model: Any, batch: TokenBatch) -> Tensor:
    return token_logprobs(model, batch.to(next(model.parameters()).device)).cpu()


def apart(ours_N: Tensor, theirs_N: Tensor) -> dict[str, float]:
    """Mean and root mean square of a difference, and what GRPO's defaults would make of it as a ratio.

    Example: differences 0 and .3: mean .15, RMS .212; exp(.3) = 1.35 is above 1.2, so half of the tokens are clipped,
    and none is corrected, as the cap is 2.
    """
    options, difference_N = LossOptions(), (ours_N - theirs_N).double()
    ratio_N = difference_N.exp()
    clipped_N = (ratio_N > 1 + options.clip_high) | (ratio_N < 1 - options.clip_low)
    return {
        "mean": float(difference_N.abs().mean()), "rms": math.sqrt(float(difference_N.square().mean())),
        "clipped_share": float(clipped_N.double().mean()),
        "corrected_share": float((ratio_N > options.correction_cap).double().mean()),
    }  # fmt: skip
