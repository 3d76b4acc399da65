"""How far a vLLM server's log-probabilities are from the trainer's in bf16.

    python -m bench.mismatch
    python -m bench.mismatch --policies models/policy models/warm    after scripts/stack.sh prepare

A vLLM server samples from the packaged model with an adapter whose weights are far from zero, so that its share of the
rounding shows. The trainer scores the same tokens in bf16, as it does in training, and in fp32, which shows how much of
the difference is its own rounding. `clipped` is the share of tokens that GRPO's defaults would clip before any update
if the sampler's log-probabilities were used as the old policy's. With several policies, the server swaps adapters, and
the tokens sampled with one must score differently with another. The server stops before the trainer loads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.harness import ROOT, Bar, finish, serving
from forage.agent.protocol import Protocol
from forage.arguments import run_script
from forage.engines.base import EngineOptions, Request, Sample, Sampling
from forage.engines.vllm import VLLMEngine
from forage.grpo.options import LossOptions
from forage.policy.adapters import newest_adapter, publish_adapter, restore_adapter
from forage.policy.base_models import PACKAGED_MODEL, resolve_model
from forage.policy.logprobs import token_logprobs
from forage.policy.manifest import AdapterOptions, read_policy_manifest
from forage.policy.packing import pack_trees, values_like
from forage.policy.policy import create_policy, load_policy, load_tokenizer

RANK, SPREAD = 8, 0.05  # of the adapter
SWAPPED = 2  # least difference with another policy's adapter, over that with the own
TIMEOUT = 3600  # seconds


@dataclass(frozen=True)
class Options:
    """What to measure on."""

    requests: int = 40
    """Samples to draw, and to score."""
    tokens: int = 48
    """Most tokens of each."""
    bar: float = 0.04
    """Largest mean difference, in nats; SmolLM2-135M in 4 bits has .05."""
    policies: tuple[Path, ...] = ()
    """Policy folders over one base, which `scripts/stack.sh vllm` serves; left out: one that is made here."""
    url: str = ""
    """A server of their base; left out: one is started. Of the packaged model: in bf16, with --max-lora-rank 8."""
    work: Path = Path("runs/mismatch")
    """Folder for the adapter and the server's log."""


@dataclass(frozen=True)
class Sampled:
    """A prompt and what the server continued it by."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]


def main(options: Options) -> None:
    folders = options.policies or (make_policy(options.work / "policy"),)
    manifest, adapters = read_policy_manifest(folders[0]), [newest_adapter(folder) for folder in folders]
    own = {"MODEL": manifest.base, "LORA_RANK": str(RANK), "DTYPE": "bfloat16", "KV_GIB": "1"}
    command, settings = (["scripts/stack.sh", "vllm"], {}) if options.policies else ([], own)
    with serving(options.url, options.work / "vllm.log", command=command, **settings) as url:
        drawn = asyncio.run(draw(options, Protocol(load_tokenizer(manifest)), adapters, url))
    policy = load_policy(manifest, adapters[0]).eval()
    found = [[with_adapter(policy, adapter, sampled) for sampled in drawn] for adapter in adapters]
    for number, folder in enumerate(folders):
        show(f"server to trainer, {folder}", found[number][number])
    if not options.policies:
        show("server to trainer in float32", with_adapter(policy.float(), adapters[0], drawn[0]))
    finish(bars([[figures["mean"] for figures in row] for row in found], options.bar))


def show(what: str, figures: Mapping[str, float]) -> None:
    print(f"{what}: {', '.join(f'{name} {value:.4f}' for name, value in figures.items())}", flush=True)


def bars(means: Sequence[Sequence[float]], bar: float = Options.bar) -> list[Bar]:
    """The bars, from the differences with each adapter (row) on the tokens of each (column).

    Example: .01 and .5, .4 and .02 are .02 at most with the own, and .4 at least with another's.
    """
    own = max(row[number] for number, row in enumerate(means))
    others = [mean for number, row in enumerate(means) for of, mean in enumerate(row) if of != number]
    found = [Bar(f"{bar:g} nats / mean difference", (bar / own,), 1)]
    return [*found, Bar("another adapter's / the own difference", (min(others) / own,), SWAPPED)] if others else found


def make_policy(folder: Path) -> Path:
    """Over the packaged model in bf16, with an adapter that says something else."""
    if not (folder / "model.json").exists():
        torch.manual_seed(1)
        adapter = AdapterOptions(r=RANK, alpha=RANK)
        create_policy(resolve_model(PACKAGED_MODEL), folder, adapter, quantize=False, dtype="bfloat16")
        policy = load_policy(read_policy_manifest(folder))
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(weight, std=SPREAD)
        publish_adapter(policy, folder, 1)
    return folder


async def draw(options: Options, protocol: Protocol, adapters: Sequence[Path], url: str) -> list[list[Sampled]]:
    """What the server samples with each adapter, loaded one after the other."""
    questions = (ROOT / "sample_data" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    asked = [json.loads(line)["question"] for line in questions]
    prompts = [tuple(protocol.prompt(asked[number % len(asked)])) for number in range(options.requests)]
    found = []
    async with VLLMEngine(EngineOptions(urls=(url,), timeout=TIMEOUT)) as engine:
        for number, adapter in enumerate(adapters):
            await engine.load_adapter(f"mismatch-{number}-{adapter.name}", adapter)
            samples = await asyncio.gather(*(
                engine.generate(Request(prompt, options.tokens, protocol.stop_ids, seed, Sampling(), str(seed)))
                for seed, prompt in enumerate(prompts)
            ))  # fmt: skip
            found.append([joined(*pair) for pair in zip(prompts, samples, strict=True)])
    return found


def joined(ids: tuple[int, ...], sample: Sample) -> Sampled:
    none = (0,) * len(ids)
    return Sampled(ids + sample.ids, none + (1,) * len(sample.ids), none + sample.logprobs)


@torch.no_grad()
def with_adapter(policy: Any, adapter: Path, sampled: Sequence[Sampled]) -> dict[str, float]:
    """How far the trainer, which computes what prompts begin with once, is from the server."""
    restore_adapter(policy, adapter)
    return compare(policy, sampled)


def compare(policy: Any, sampled: Sequence[Sampled]) -> dict[str, float]:
    logprobs, ours, theirs = [one.logprobs for one in sampled], list[Tensor](), list[Tensor]()
    device = next(policy.parameters()).device
    for batch in pack_trees(sampled, 4096):
        chosen = batch.predicted_BT.bool()
        ours.append(token_logprobs(policy, batch.to(device)).cpu()[chosen])
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
