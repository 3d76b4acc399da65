"""TRL's GRPOTrainer beside ours, run by bench/update.py and bench/step.py in .venv-peers, which has no forage.

`update` plays stored episodes back; the clock runs from there to the end of the optimiser's step: advantages,
log-probabilities, loss, gradients, AdamW. `step` lets the trainer play with `tools=`, whose search asks
`document_store.py serve`; the reward costs nothing, and the clock runs over whole steps: generation, tool calls,
log-probabilities, loss, gradients, AdamW. The first step warms up. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template


class Clock(TrainerCallback):
    """Seconds of each step, from its beginning or from when `started` was set."""

    def __init__(self) -> None:
        self.started = 0.0
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter() - self.started)


def update(options: argparse.Namespace) -> dict[str, Any]:
    rows = [json.loads(line) for line in options.episodes.read_text().splitlines()]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["question_id"], []).append(row)
    clock, model = Clock(), policy_of(options)
    before = peak_mib()

    def play_back(prompts: list[str], *_: Any) -> dict[str, Any]:
        left = {name: list(group) for name, group in groups.items()}
        played = [left[prompt].pop(0) for prompt in prompts]
        starts = [row["mask"].index(1) for row in played]
        pairs = list(zip(played, starts, strict=True))
        clock.started = time.perf_counter()
        return {
            "prompt_ids": [row["ids"][:start] for row, start in pairs],
            "completion_ids": [row["ids"][start:] for row, start in pairs],
            "logprobs": [row["logprobs"][start:] for row, start in pairs],
            "env_mask": [row["mask"][start:] for row, start in pairs],
        }

    train(
        options, model, Dataset.from_dict({"prompt": list(groups)}), AutoTokenizer.from_pretrained(options.base), clock,
        alternating, {"rollout_func": play_back}, steps=2, num_generations=len(next(iter(groups.values()))),
        gradient_accumulation_steps=len(rows) // options.batch,
        max_completion_length=max(len(row["ids"]) for row in rows),
    )  # fmt: skip
    peak = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else peak_mib() - before
    return {"rate": sum(len(row["ids"]) for row in rows) / clock.seconds[-1], "mib": peak}


def step(options: argparse.Namespace) -> dict[str, Any]:
    clock, tokens, searches = Clock(), list[int](), list[float]()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    tokenizer.response_template = qwen3_template

    def search(query: str) -> str:
        """Finds passages of a library.

        Args:
            query: a few words
        """
        body = json.dumps({"queries": [query], "topk": 3}).encode()
        request = urllib.request.Request(f"{options.store}/retrieve", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)["result"][0]
        passages = [tokenizer(" ".join(entry["contents"].split()))["input_ids"] for entry in found]
        shown = [tokenizer.decode(ids[: options.passage_tokens]) for ids in passages]
        return "\n".join(f"[{number}] {text}" for number, text in enumerate(shown, 1))

    def noted(prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        shown = tokenizer.apply_chat_template(prompts, tools=[search], add_generation_prompt=True)["input_ids"]
        tokens.append(sum(map(len, shown)) + sum(map(len, completion_ids)))
        called = [sum(message["role"] == "tool" for message in completion) for completion in completions]
        searches.append(sum(called) / len(called))
        return alternating(completion_ids)

    questions = [json.loads(line)["question"] for line in options.data.read_text().splitlines()]
    prompts = [[{"role": "user", "content": text}] for text in questions]
    train(
        options, policy_of(options), Dataset.from_dict({"prompt": prompts}), tokenizer, clock, noted,
        {"tools": [search]}, steps=options.steps, num_generations=options.group,
        gradient_accumulation_steps=options.questions * options.group // options.batch, temperature=options.temperature,
        max_completion_length=options.max_completion, max_tool_calling_iterations=options.turns,
        generation_kwargs={"max_new_tokens": options.turn_tokens},
    )  # fmt: skip
    return {"seconds": clock.seconds[1:], "tokens": tokens[1:], "searches": searches[1:]}


def alternating(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [float(number % 2) for number in range(len(completion_ids))]


def policy_of(options: argparse.Namespace) -> Any:
    model = AutoModelForCausalLM.from_pretrained(options.base, dtype=getattr(torch, options.dtype))
    return PeftModel.from_pretrained(model, options.adapter, is_trainable=True)


def train(
    options: argparse.Namespace, model: Any, data: Dataset, tokenizer: Any, clock: Clock, reward: Any,
    more: dict[str, Any], *, steps: int, **settings: Any,
) -> None:  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder, use_cpu=not torch.cuda.is_available(), bf16=False, gradient_checkpointing=False,
            report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True, beta=0.0, max_steps=steps,
            learning_rate=1e-6, per_device_train_batch_size=options.batch, **settings,
        )  # fmt: skip
        GRPOTrainer(
            model, reward, arguments, train_dataset=data, processing_class=tokenizer, callbacks=[clock], **more
        ).train()


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("update", "step"))
    for name in ("--base", "--adapter", "--dtype", "--tokenizer", "--store"):
        parser.add_argument(name)
    for name in ("--episodes", "--data"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--temperature", type=float)
    for name in ("questions", "group", "batch", "steps", "turns", "turn-tokens", "passage-tokens", "max-completion"):
        parser.add_argument(f"--{name}", type=int)
    given = parser.parse_args()
    print(json.dumps({"update": update, "step": step}[given.what](given)))
