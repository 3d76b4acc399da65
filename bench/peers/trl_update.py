"""One update by TRL's GRPOTrainer of stored episodes. Run by bench/peer_update.py in .venv-peers, which has no forage.

Its rollout function plays the episodes back; the clock runs from there to the end of the optimiser's step: advantages,
log-probabilities, loss, gradients, AdamW. The first of two updates warms up. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Seconds from the end of each rollout to the end of its step."""

    def __init__(self) -> None:
        self.started = 0.0
        self.seconds: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter() - self.started)


def main(options: argparse.Namespace) -> None:
    rows = [json.loads(line) for line in options.episodes.read_text().splitlines()]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["question_id"], []).append(row)
    size = len(next(iter(groups.values())))
    clock = Clock()

    def play_back(prompts: list[str], *_: Any) -> dict[str, Any]:
        left = {name: list(group) for name, group in groups.items()}
        played = [left[prompt].pop(0) for prompt in prompts]
        starts = [row["mask"].index(1) for row in played]
        found = {
            "prompt_ids": [row["ids"][:start] for row, start in zip(played, starts, strict=True)],
            "completion_ids": [row["ids"][start:] for row, start in zip(played, starts, strict=True)],
            "logprobs": [row["logprobs"][start:] for row, start in zip(played, starts, strict=True)],
            "env_mask": [row["mask"][start:] for row, start in zip(played, starts, strict=True)],
        }
        clock.started = time.perf_counter()
        return found

    def alternating(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(number % 2) for number in range(len(completion_ids))]

    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder, use_cpu=not torch.cuda.is_available(), bf16=False, gradient_checkpointing=False,
            report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True, beta=0.0,
            num_generations=size, per_device_train_batch_size=options.batch,
            gradient_accumulation_steps=len(rows) // options.batch, max_steps=2, learning_rate=1e-6,
            max_completion_length=max(len(row["ids"]) for row in rows),
        )  # fmt: skip
        model = AutoModelForCausalLM.from_pretrained(options.base, dtype=getattr(torch, options.dtype))
        model = PeftModel.from_pretrained(model, options.adapter, is_trainable=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        trainer = GRPOTrainer(
            model, alternating, arguments, train_dataset=Dataset.from_dict({"prompt": list(groups)}),
            processing_class=AutoTokenizer.from_pretrained(options.base), rollout_func=play_back, callbacks=[clock],
        )  # fmt: skip
        trainer.train()
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated() / 2**20
    print(json.dumps({"rate": sum(len(row["ids"]) for row in rows) / clock.seconds[-1], "mib": peak}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=Path, required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--adapter", required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batch", type=int, required=True)
    main(parser.parse_args())
