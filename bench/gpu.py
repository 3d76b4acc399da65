"""What only a GPU can show, in one command that takes at most nine minutes and downloads nothing.

    python -m bench.gpu

Random weights of Qwen2.5-7B's size are made on the device and put through the functions that grpo_train.py calls. The
stack's update is that for a card of 24 GB, under ZeRO-2; the local engine samples with an adapter over a base in 4 bits
or in bf16. It needs torch, transformers and peft; a row that also needs bitsandbytes or
DeepSpeed says so if that is missing. Each row runs in its own process, and its figures are written to the JSON file at
once. --tiny measures everything on a small model, on a CPU. For TRL's update on a GPU see bench.update --trl; for how
log-probabilities compare with a server's, bench.mismatch.

Tokens/s counts the episodes' tokens, however many are computed. It leaves out the first run, which compiles kernels and
is `first_seconds`. Peak GiB counts PyTorch's tensors, without the CUDA context.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forage.agent.episode import Episode
from forage.engines.base import Request
from forage.engines.local import LocalEngine
from forage.files import replacing
from forage.grpo.learner import Learner
from forage.grpo.options import UpdateOptions
from forage.grpo.sharding import ShardedLearner
from forage.grpo.update import UpdateContext, prepare, update
from forage.optimizer import MemoryOptions
from forage.policy.adapters import publish_adapter
from forage.policy.manifest import AdapterOptions
from forage.policy.policy import add_adapter, keep_trainable, nf4, ready_to_train
from forage.processes import join_processes

# argparse and a plain table instead of forage.arguments: a borrowed GPU machine may not have rich.

LIMIT, ALL = 150.0, 540.0  # most seconds of a row, and of all of them
BUDGET = 4096  # tokens of a micro-batch on a card of 24 GB


@dataclass(frozen=True)
class Options:
    """What to measure."""

    tiny: bool = False
    json: Path = Path("runs/gpu.json")
    row: str = ""
    """Each row's process is started with its name."""


def main(options: Options) -> None:
    if options.row:
        print(json.dumps(ROWS[options.row](TINY if options.tiny else FULL)))
        return
    deadline, found = time.monotonic() + ALL, dict[str, dict[str, Any]]()
    for row in ROWS:
        found[row] = alone(row, min(LIMIT, deadline - time.monotonic()), ["--tiny"] if options.tiny else [])
        print(f"{row}: {', '.join(f'{name} {shown(value)}' for name, value in found[row].items())}", flush=True)
        with replacing(options.json) as file:
            json.dump({"tiny": options.tiny, "rows": found}, file, indent=1)
    if all("failed" in figures for figures in found.values()):
        sys.exit("nothing was measured")


def shown(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def alone(row: str, seconds: float, flags: Sequence[str]) -> dict[str, Any]:
    """A row's figures by a process of its own, which an error ends, and with it all that it holds; or why none."""
    command = [sys.executable, "-m", "bench.gpu", "--row", row, *flags]
    environment = {"CUDA_VISIBLE_DEVICES": "0"} | os.environ
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=max(0.0, seconds), check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": "no time left"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["it said nothing"])[-1]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


# What is measured on

GIB = 2**30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # a CPU's memory is the process's own
# Written out, because nothing is downloaded.
QWEN_7B: dict[str, Any] = {  # Qwen2.5-7B-Instruct
    "model_type": "qwen2", "vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18_944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """What is measured on. Lengths are in tokens."""

    policy: dict[str, Any]
    """Configuration of the model that is trained and sampled."""
    groups: int
    """Questions of the update."""
    group: int
    """Episodes of each question."""
    prompt: int
    """Length of the prompt that a group shares."""
    shortest: int
    """Shortest episode, prompt included."""
    longest: int
    """Longest episode."""
    turn: int
    """Length of what the policy samples between two results."""
    result: int
    """Length of a result."""
    sampled: int
    """Tokens that each of the two turns of the sampling rows has."""

    @property
    def episodes(self) -> int:
        return self.groups * self.group


FULL = Scale(QWEN_7B, 4, 8, prompt=600, shortest=1000, longest=4000, turn=150, result=350, sampled=128)
TINY_POLICY = QWEN_7B | {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
TINY = Scale(TINY_POLICY, 2, 4, prompt=24, shortest=40, longest=120, turn=12, result=20, sampled=6)


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """(seconds, peak GiB) of some work."""
    started = time.perf_counter()
    if DEVICE == "cpu":
        work()
        return time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started, torch.cuda.max_memory_allocated() / GIB


# Models


def random_model(settings: dict[str, Any]) -> Any:
    """A causal language model in bf16 with random weights; the same seed every time."""
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    values = dict(settings)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return auto.from_config(config, dtype=torch.bfloat16).eval()


def trained_policy(settings: dict[str, Any], *, quantized: bool = False, checkpointing: bool = False) -> Any:
    """A random model with a fresh adapter on every linear layer, in training mode, as grpo_train.py opens it."""
    model = random_model(settings)
    if quantized:
        quantize(model)
    policy = ready_to_train(add_adapter(model, "random", AdapterOptions()))
    policy.train()  # transformers checkpoints activations in training mode only
    if checkpointing:
        # transformers renamed it after 5.17, which a borrowed machine may have.
        new = getattr(policy, "activation_checkpointing_enable", None)
        (new or policy.gradient_checkpointing_enable)({"use_reentrant": False})
    return policy


def quantize(model: Any) -> None:
    """Turn the linear layers, except for the output layer, into NF4 with the settings of create_lora_model.py."""
    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    for name, part in linear:
        if part is not model.get_output_embeddings():
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, packed(part))
    model.is_loaded_in_4bit = True  # peft asks the model, not its layers
    keep_trainable(model)


def packed(linear: nn.Linear) -> Any:
    bnb: Any = importlib.import_module("bitsandbytes")
    settings = nf4()
    form = {
        "quant_type": settings.bnb_4bit_quant_type, "compress_statistics": settings.bnb_4bit_use_double_quant,
        "quant_storage": settings.bnb_4bit_quant_storage,
    }  # fmt: skip
    layer = bnb.nn.Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None, settings.bnb_4bit_compute_dtype,
        device="meta", **form,
    )  # fmt: skip
    weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, module=layer, **form)
    layer.weight, layer.bias = weight.to(linear.weight.device), linear.bias  # quantises
    return layer


# Episodes


def made_episodes(scale: Scale) -> list[Episode]:
    """Groups with a prompt each; lengths are spread evenly from shortest to longest; rewards alternate.

    After the prompt come sampled turns and results in turn. Example: prompt 2, turn 1, result 2 and 7 tokens: mask
    0 0 1 0 0 1 0.
    """
    draws, vocabulary, period = random.Random(0), range(scale.policy["vocab_size"]), scale.turn + scale.result
    lengths = torch.linspace(scale.shortest, scale.longest, scale.episodes).round().int().tolist()
    draws.shuffle(lengths)
    episodes, prompt = [], list[int]()
    for number, length in enumerate(lengths):
        if number % scale.group == 0:
            prompt = draws.choices(vocabulary, k=scale.prompt)
        ids = (*prompt, *draws.choices(vocabulary, k=length - scale.prompt))
        mask = tuple(
            int(place >= 0 and place % period < scale.turn) for place in range(-scale.prompt, len(ids) - scale.prompt)
        )
        logprobs = tuple(-math.log(len(vocabulary)) * sampled for sampled in mask)  # what random weights give, about
        rewards, question = {"made": float(number % 2)}, f"q{number // scale.group}"
        episodes.append(
            Episode(
                f"{question}/{number}", question, ids, mask, logprobs, (), (), "", "answer", "random", rewards=rewards
            )
        )
    return episodes


# Rows


def describe(scale: Scale) -> dict[str, Any]:
    facts: dict[str, Any] = {"torch": torch.__version__, "device": DEVICE}
    if DEVICE == "cuda":
        card = torch.cuda.get_device_properties(0)
        facts |= {"device": card.name, "memory_gib": card.total_memory / GIB}
    return facts


def measure_update(scale: Scale, *, quantized: bool, checkpointing: bool) -> dict[str, Any]:
    """In micro-batches of the greatest size, however much memory they take."""
    return updates(scale, Learner(trained_policy(scale.policy, quantized=quantized, checkpointing=checkpointing)))


def measure_stack(scale: Scale) -> dict[str, Any]:
    """As on a card of 24 GB that a vLLM server shares (scripts/cards.txt)."""
    join_processes()
    policy = trained_policy(scale.policy, quantized=True, checkpointing=True)
    return updates(scale, ShardedLearner(policy, sharding="zero2"), BUDGET)


def updates(scale: Scale, learner: Learner, budget: int | None = None) -> dict[str, Any]:
    """One update of all episodes after a first, which also lowers the token budget where memory wants it. Prompts are
    shared, as in grpo_train.py."""
    episodes, options = made_episodes(scale), UpdateOptions(memory=MemoryOptions(token_budget=budget))
    figures = dict[str, float]()
    context = UpdateContext(options, 1.0, share_prompts=True)
    batch = prepare(episodes, options)
    first, _ = measured(lambda: update(learner, batch, context))
    seconds, peak = measured(lambda: figures.update(update(learner, batch, context)))
    return {
        "tokens_per_second": sum(len(episode.ids) for episode in episodes) / seconds, "peak_gib": peak,
        "seconds": seconds, "first_seconds": first, "lowered_budget": learner.lowered_budget,
        **{name: figures[name] for name in ("micro_batches", "grad_norm", "policy_loss")},
    }  # fmt: skip


def measure_engine(scale: Scale, *, quantized: bool) -> dict[str, Any]:
    """LocalEngine: two turns with a result between them, all episodes at once. Tokens/s counts sampled tokens."""
    model = random_model(scale.policy)
    if quantized:
        quantize(model)
    policy = add_adapter(model, "random", AdapterOptions())
    with tempfile.TemporaryDirectory() as folder:
        adapter = publish_adapter(policy, Path(folder), 0)
        engine = LocalEngine(policy.unload(), scale.episodes)
        first, _ = measured(lambda: asyncio.run(play(engine, scale, adapter)))
        seconds, peak = measured(lambda: asyncio.run(play(engine, scale, adapter)))
    tokens = 2 * scale.sampled * scale.episodes
    return {
        "tokens_per_second": tokens / seconds, "peak_gib": peak, "seconds": seconds, "first_seconds": first,
        "sampled": tokens,
    }  # fmt: skip


async def play(engine: LocalEngine, scale: Scale, adapter: Path) -> None:
    """All episodes, with an adapter that is loaded first, as in each step: nothing is left of the keys of an earlier
    one."""
    await engine.load_adapter(adapter.name, adapter)
    draws, vocabulary = random.Random(0), range(2, scale.policy["vocab_size"])
    prompts = [draws.choices(vocabulary, k=scale.prompt) for _ in range(scale.groups)]
    result = draws.choices(vocabulary, k=scale.result)

    async def two_turns(number: int) -> None:
        ids, name = list(prompts[number // scale.group]), f"episode {number}"
        for turn in range(2):
            sample = await engine.generate(Request(tuple(ids), scale.sampled, (), seed=turn, episode=name))
            ids += [*sample.ids, *result]
        engine.release(name)

    await asyncio.gather(*map(two_turns, range(scale.episodes)))


# In the order of their worth: when time runs out, the last ones are missing.
ROWS: Mapping[str, Callable[[Scale], dict[str, Any]]] = {
    "machine": describe,
    "update, the stack's on 24 GB": measure_stack,
    "sampling NF4": partial(measure_engine, quantized=True),
    "update NF4, checkpointing": partial(measure_update, quantized=True, checkpointing=True),
    "update bf16, checkpointing": partial(measure_update, quantized=False, checkpointing=True),
    "sampling bf16": partial(measure_engine, quantized=False),
    "update NF4": partial(measure_update, quantized=True, checkpointing=False),
    "update bf16": partial(measure_update, quantized=False, checkpointing=False),
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        "python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="small models and short episodes, for a CPU")
    parser.add_argument("--json", type=Path, default=Options.json, help="file of figures (runs/gpu.json)")
    parser.add_argument("--row", default="", help=argparse.SUPPRESS)
    main(Options(**vars(parser.parse_args())))
