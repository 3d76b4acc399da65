"""How far a vLLM server's log-probabilities are from the trainer's in bf16.

    python -m bench.mismatch

A vLLM server samples from the packaged model with an adapter loaded: one with weights far from zero, so that its part
of the rounding shows. The trainer scores the same tokens in bf16, as it trains, and in fp32, which tells how much of
the difference is its own rounding. `clipped` is the share of tokens that GRPO's defaults would clip before any update,
if the sampler's log-probabilities stood for the old policy's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.harness import ROOT, Bar, finish, serving
from forage.agent.protocol import Protocol
from forage.cli import run_script
from forage.engines.base import EngineOptions, Request, Sampling
from forage.engines.vllm import VLLMEngine
from forage.grpo.options import LossOptions
from forage.policy.base_models import PACKAGED_MODEL, resolve_model
from forage.policy.logprobs import token_logprobs
from forage.policy.packing import pack_trees, values_like

RANK, SPREAD = 8, 0.05  # of the adapter
BAR = 0.04  # largest mean difference, in nats
TIMEOUT = 3600  # seconds


@dataclass(frozen=True)
class Options:
    """What to measure on."""

    requests: int = 40
    """Samples to draw, and to score."""
    tokens: int = 48
    """Most tokens of each."""
    url: str = ""
    """A server of the packaged model in bf16 with --max-lora-rank 8 or more; left out: one is started."""
    work: Path = Path("runs/mismatch")
    """Folder for the adapter and the server's log."""


@dataclass(frozen=True)
class Sampled:
    """A prompt and what the server continued it by."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]


def main(options: Options) -> None:
    base, adapter = resolve_model(PACKAGED_MODEL), options.work / "v000001"
    make_adapter(base, adapter)
    settings = {"MODEL": base, "LORA_RANK": str(RANK), "DTYPE": "bfloat16", "KV_GIB": "1"}
    with serving(options.url, options.work / "vllm.log", **settings) as url:
        sampled = asyncio.run(draw(options, base, adapter, url))
    found = {str(dtype): differences(base, adapter, dtype, sampled) for dtype in (torch.bfloat16, torch.float32)}
    for dtype, figures in found.items():
        said = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        print(f"server to trainer in {dtype.removeprefix('torch.')}: {said}", flush=True)
    mean = found[str(torch.bfloat16)]["mean"]
    finish([Bar(f"{BAR} nats / mean difference", (BAR / mean,), 1)])


def make_adapter(base: str, folder: Path) -> None:
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    policy = get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=SPREAD)
    policy.save_pretrained(str(folder))


async def draw(options: Options, base: str, adapter: Path, url: str) -> list[Sampled]:
    protocol = Protocol(AutoTokenizer.from_pretrained(base))
    questions = (ROOT / "sample_data" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    asked = [json.loads(line)["question"] for line in questions]
    prompts = [tuple(protocol.prompt(asked[number % len(asked)])) for number in range(options.requests)]
    async with VLLMEngine(EngineOptions(urls=(url,), timeout=TIMEOUT)) as engine:
        await engine.load_adapter("mismatch-v000001", adapter)
        samples = await asyncio.gather(*(
            engine.generate(Request(prompt, options.tokens, protocol.stop_ids, number, Sampling(), str(number)))
            for number, prompt in enumerate(prompts)
        ))  # fmt: skip
    none = (0,) * max(map(len, prompts))
    return [
        Sampled(ids + sample.ids, none[: len(ids)] + (1,) * len(sample.ids), none[: len(ids)] + sample.logprobs)
        for ids, sample in zip(prompts, samples, strict=True)
    ]


@torch.no_grad()
def differences(base: str, adapter: Path, dtype: torch.dtype, sampled: Sequence[Sampled]) -> dict[str, float]:
    """Of the trainer, which computes what prompts begin with once, from the server."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    policy = PeftModel.from_pretrained(model.to(dtype), str(adapter)).eval()
    return compare(policy, sampled)


def compare(policy: Any, sampled: Sequence[Sampled]) -> dict[str, float]:
    logprobs, ours, theirs = [one.logprobs for one in sampled], list[Tensor](), list[Tensor]()
    for batch in pack_trees(sampled, 4096):
        chosen = batch.predicted_BT.bool()
        ours.append(token_logprobs(policy, batch)[chosen])
        theirs.append(values_like(batch, logprobs)[chosen])
    return apart(torch.cat(theirs), torch.cat(ours))


def apart(sampler_N: Tensor, trainer_N: Tensor) -> dict[str, float]:
    """The mean difference, and the share of tokens that GRPO's defaults would clip.

    Example: differences 0 and .3: mean .15; exp(.3) = 1.35 is above 1.2, so half of the tokens are clipped.
    """
    options, difference_N = LossOptions(), (trainer_N - sampler_N).double()
    ratio_N = difference_N.exp()
    clipped_N = (ratio_N > 1 + options.clip_high) | (ratio_N < 1 - options.clip_low)
    return {"mean": float(difference_N.abs().mean()), "clipped": float(clipped_N.double().mean())}


if __name__ == "__main__":
    run_script(main, description=__doc__)
