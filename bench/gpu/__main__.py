"""What only a GPU can show, in one command of at most nine minutes; nothing is downloaded.

    python -m bench.gpu

Random weights in the size of Qwen2.5-7B are made on the device, and go through the functions that grpo_train.py calls.
It needs torch, transformers and peft; a row that wants bitsandbytes says so where that is missing. Each row has a
process of its own, and what it measured is in the JSON file as soon as it is known. --tiny measures everything on a
small model, on a CPU. TRL's update on a GPU is in bench.update --trl; log-probabilities beside a server's are in
bench.mismatch.

Tokens/s counts the episodes' tokens, however many are computed; MFU the operations that an update needs, without
recomputation and padding, over the peak in bench/gpu/made.py; peak GiB PyTorch's tensors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.gpu.made import (
    FULL,
    GIB,
    PEAK_FLOPS,
    TINY,
    Scale,
    device,
    device_name,
    made_episodes,
    measured,
    random_model,
    tokens_of,
    trained_policy,
    update_flops,
)
from forage.engines.base import Request
from forage.engines.local import LocalEngine
from forage.files import replacing
from forage.grpo.learner import Learner
from forage.grpo.options import UpdateOptions
from forage.grpo.update import UpdateContext, prepare, update

# argparse and a plain table instead of forage.cli: a borrowed GPU machine may not have rich.

LIMIT = 150.0  # most seconds of a row
COLUMNS = {"tokens_per_second": "{:,.0f}", "mfu": "{:.1%}", "peak_gib": "{:.1f}"}


@dataclass(frozen=True)
class Options:
    """What to measure."""

    tiny: bool = False
    minutes: float = 9.0
    json: Path = Path("runs/gpu.json")
    only: str = ""
    row: str = ""


def main(options: Options) -> None:
    if options.row:
        print(json.dumps(ROWS[options.row](TINY if options.tiny else FULL)))
        return
    deadline, found = time.monotonic() + 60 * options.minutes, dict[str, dict[str, Any]]()
    print("| row | tokens/s | MFU | peak GiB | more |\n|---|---|---|---|---|", flush=True)
    for row in ROWS:
        if row.startswith(options.only):
            found[row] = alone(row, min(LIMIT, deadline - time.monotonic()), ["--tiny"] if options.tiny else [])
            print(line(row, found[row]), flush=True)
            with replacing(options.json) as file:
                json.dump({"tiny": options.tiny, "rows": found}, file, indent=1)
    if all("failed" in figures for figures in found.values()):
        sys.exit("nothing was measured")


def parse(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        "python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="small models and short episodes, for a CPU")
    parser.add_argument("--minutes", type=float, default=Options.minutes, help="time for all rows (9)")
    parser.add_argument("--json", type=Path, default=Options.json, help="file of figures (runs/gpu.json)")
    parser.add_argument("--only", default="", metavar="NAME", help="rows whose names begin so")
    parser.add_argument("--row", default="", help=argparse.SUPPRESS)  # each row's process is started with its name
    return Options(**vars(parser.parse_args(arguments)))


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
        return {"failed": (done.stderr.strip().splitlines() or ["it said nothing"])[-1], "trace": done.stderr[-4000:]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def line(row: str, figures: Mapping[str, Any]) -> str:
    """The row of the table.

    Example: | update NF4 | 3,100 | 31.0% | 22.5 | token_budget 8192 |.
    """
    columns = [form.format(figures[name]) if figures.get(name) else "" for name, form in COLUMNS.items()]
    more = {name: value for name, value in figures.items() if name not in COLUMNS and name != "trace"}
    said = [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in more.items()]
    return "| " + " | ".join([row, *columns, ", ".join(said)]) + " |"


# Rows


def describe(scale: Scale, times: int = 10) -> dict[str, Any]:
    """What everything is measured on, with the speed of a large bf16 product beside the assumed peak."""
    left, right = (torch.randn(2 * (scale.matrix,), device=device(), dtype=torch.bfloat16) for _ in range(2))

    def products() -> None:
        for _ in range(times):
            left @ right

    products()
    seconds, _ = measured(products)
    facts: dict[str, Any] = {"device": device_name(), "product_tflops": times * 2 * scale.matrix**3 / seconds / 1e12}
    if torch.cuda.is_available():
        facts["memory_gib"] = torch.cuda.get_device_properties(device()).total_memory / GIB
    return facts | {"assumed_peak_tflops": PEAK_FLOPS.get(device_name(), 0.0) / 1e12, "torch": torch.__version__}


def measure_update(scale: Scale, *, quantized: bool, checkpointing: bool) -> dict[str, Any]:
    """One update of all episodes after another that warms up, and lowers the token budget where memory wants it.
    Prompts are shared where activations are kept, as in grpo_train.py."""
    policy, options = trained_policy(scale.policy, quantized=quantized, checkpointing=checkpointing), UpdateOptions()
    episodes, shared = made_episodes(scale), not checkpointing
    learner, context, figures = Learner(policy), UpdateContext(options, 1e-6, 1.0, shared), dict[str, float]()
    batch = prepare(episodes, options)
    update(learner, batch, context)
    seconds, peak = measured(lambda: figures.update(update(learner, batch, context)))
    trained = sum(weight.numel() for weight in policy.parameters() if weight.requires_grad)
    flops = update_flops(scale.policy, episodes, trained, scale.prompt if shared else 0)
    most = PEAK_FLOPS.get(device_name())
    return {
        "tokens_per_second": tokens_of(episodes) / seconds, "mfu": flops / seconds / most if most else None,
        "peak_gib": peak, "seconds": seconds, "lowered_budget": learner.lowered_budget,
        **{name: figures[name] for name in ("micro_batches", "grad_norm", "policy_loss")},
    }  # fmt: skip


def measure_engine(scale: Scale) -> dict[str, Any]:
    """LocalEngine: two turns with a result between them, all episodes at once. Tokens/s counts sampled tokens."""
    engine = LocalEngine(random_model(scale.policy), scale.episodes)
    draws, vocabulary = random.Random(0), range(2, scale.policy["vocab_size"])
    prompts = [draws.choices(vocabulary, k=scale.prompt) for _ in range(scale.groups)]
    result = draws.choices(vocabulary, k=scale.result)

    async def two_turns(number: int, name: str, tokens: int) -> None:
        ids = list(prompts[number // scale.group])
        for turn in range(2):
            sample = await engine.generate(Request(tuple(ids), tokens, (), seed=turn, episode=name))
            ids += [*sample.ids, *result]
        engine.release(name)

    async def play(count: int, name: str, tokens: int) -> None:
        await asyncio.gather(*(two_turns(number, f"{name} {number}", tokens) for number in range(count)))

    asyncio.run(play(2, "warm-up", 2))
    seconds, peak = measured(lambda: asyncio.run(play(scale.episodes, "episode", scale.sampled)))
    tokens = 2 * scale.sampled * scale.episodes
    return {"tokens_per_second": tokens / seconds, "peak_gib": peak, "seconds": seconds, "sampled": tokens}


# In the order of their worth: when time runs out, the last ones are missing.
ROWS: Mapping[str, Callable[[Scale], dict[str, Any]]] = {
    "machine": describe,
    "update bf16, checkpointing": partial(measure_update, quantized=False, checkpointing=True),
    "update NF4, checkpointing": partial(measure_update, quantized=True, checkpointing=True),
    "sampling": measure_engine,
    "update bf16": partial(measure_update, quantized=False, checkpointing=False),
    "update NF4": partial(measure_update, quantized=True, checkpointing=False),
}


if __name__ == "__main__":
    main(parse())
