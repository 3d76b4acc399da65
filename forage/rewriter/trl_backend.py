"""PPO by TRL's trainer, behind the same seam as forage/rewriter/ppo.py's own loop.

TRL's train() is one function that takes its batches from `self.dataloader` and reports by `self.log`. So batches come
from us (the rows of an update are known, not fetched ahead), figures and checkpoints leave by `log`, which is called
once an update when its optimiser steps are done, and a run goes on by training the rest of the updates: all else
that train() keeps between updates are weights and optimiser. Not used, as in trl 1.12 they do nothing or mislead:
bf16 and gradient_checkpointing, mini-batches together with accumulation (only some of them step), missing_eos_penalty
(every answer cut at 32 tokens is punished), num_sample_generations, and its own saving (without the value model).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from forage.rewriter.actors import Actors, Policy
from forage.rewriter.options import PPOOptions
from forage.rewriter.ppo import Batch, Done, Score
from forage.rewriter.rewards import RewardBridge
from forage.rewriter.rewrites import Row


def train_trl(
    actors: Actors, optimizer: torch.optim.Optimizer, batches: Iterable[Batch], updates: int, score: Score,
    options: PPOOptions, done: Done, rows: list[Row], padded_tokenizer: Any, run_dir: Path,
) -> None:  # fmt: skip
    """So many updates, each on the next batch. `rows` are all that batches may hold."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    class Trainer(PPOTrainer):
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            done({name: float(value) for name, value in logs.items() if name != "eps"})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # on a name of transformers' that TRL uses by itself
        config = _config(PPOConfig, actors.policy, updates, options, run_dir)
    bridge = RewardBridge(rows, score)
    parts: dict[str, Any] = {
        "args": config, "processing_class": padded_tokenizer, "model": actors.policy, "ref_model": actors.reference,
        "reward_model": bridge, "value_model": actors.value_model,
        "train_dataset": Dataset.from_dict({"input_ids": [list(row.prompt) for row in rows[: options.batch_size]]}),
        "optimizers": (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
    }  # fmt: skip
    trainer: Any = Trainer(**parts)
    trainer.remove_callback(PrinterCallback)
    trainer.dataloader = _told(batches, bridge)
    trainer.train()


def _config(kind: Any, policy: Policy, updates: int, options: PPOOptions, run_dir: Path) -> Any:
    """Our options under TRL's names."""
    sampling = policy.sampling
    return kind(
        output_dir=str(run_dir), report_to="none", save_strategy="no", bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, num_sample_generations=0, total_episodes=updates * options.batch_size,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=options.batch_size // options.micro_batch, num_mini_batches=1,
        # In one piece: TRL joins pieces by padding, with an id that no logits have.
        local_rollout_forward_batch_size=options.batch_size,
        num_ppo_epochs=options.ppo_epochs, learning_rate=options.learning_rate, kl_coef=options.kl_coef,
        cliprange=options.clip_range, cliprange_value=options.value_clip_range, vf_coef=options.value_coef,
        gamma=options.gamma, lam=options.gae_lambda, response_length=sampling.max_new_tokens,
        temperature=sampling.temperature, stop_token="eos",  # noqa: S106
        use_cpu=policy.lm.device.type == "cpu",
    )  # fmt: skip


def _told(batches: Iterable[Batch], bridge: RewardBridge) -> Iterator[dict[str, torch.Tensor]]:
    """The batches as TRL takes them, the bridge told of each just before."""
    for batch in batches:
        bridge.expect(batch.ids_BT.shape[1])
        yield {"input_ids": batch.ids_BT}
