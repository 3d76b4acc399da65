"""PPO by TRL's trainer, with the same interface as our own loop in forage/extras/rewriter/ppo.py.

TRL's train() is one function that takes its batches from `self.dataloader` and reports through `self.log`. So we supply
the batches (an update's rows must be known, not prefetched); figures and checkpoints leave through `log`, which is
called once per update after its optimizer steps, in each of the processes that torchrun or accelerate started; and a
run resumes by training the remaining updates, since all else that train() keeps between updates is weights and
optimizer state. Not used, because in trl 1.12 they do nothing or mislead: bf16, gradient_checkpointing, mini-batches
with accumulation (only some of them step), missing_eos_penalty (punishes every response that is cut at 32 tokens),
num_sample_generations, and its checkpoints (no value model).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from forage.extras.rewriter.actors import Policy
from forage.extras.rewriter.options import PPOOptions
from forage.extras.rewriter.ppo import PromptBatch, Score, Training
from forage.processes import world


def train_trl(
    training: Training, batches: Iterable[PromptBatch], updates: int, *, padded_tokenizer: Any, run_dir: Path
) -> None:
    """One update on each of the next `updates` batches."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    class Trainer(PPOTrainer):
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            training.after_update({name: float(value) for name, value in logs.items() if name != "eps"})

    actors, optimizer, options = training.actors, training.optimizer, training.options
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about a name in transformers that TRL itself uses
        config = _config(PPOConfig, actors.policy, updates, options, run_dir)
    bridge = RewardBridge(training.score)
    parts: dict[str, Any] = {
        "args": config, "processing_class": padded_tokenizer, "model": actors.policy, "ref_model": actors.reference,
        "reward_model": bridge, "value_model": actors.value_model,
        "train_dataset": Dataset.from_dict({"input_ids": [[0]] * options.batch_size}),  # only its length is read
        "optimizers": (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
    }  # fmt: skip
    trainer: Any = Trainer(**parts)
    trainer.remove_callback(PrinterCallback)
    trainer.dataloader = _announced(batches, bridge)
    trainer.train()


def _config(kind: Any, policy: Policy, updates: int, options: PPOOptions, run_dir: Path) -> Any:
    """Our options under TRL's names."""
    sampling = policy.sampling
    return kind(
        output_dir=str(run_dir), report_to="none", save_strategy="no", bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, num_sample_generations=0, total_episodes=updates * options.batch_size,
        per_device_train_batch_size=options.micro_batch // world(),
        gradient_accumulation_steps=options.batch_size // options.micro_batch, num_mini_batches=1,
        # In one piece: TRL would pad several pieces with an id that the logits don't have.
        local_rollout_forward_batch_size=options.batch_size // world(),
        num_ppo_epochs=options.ppo_epochs, kl_coef=options.kl_coef, cliprange=options.clip_range,
        cliprange_value=options.value_clip_range, vf_coef=options.value_coef,
        gamma=options.gamma, lam=options.gae_lambda, response_length=sampling.max_new_tokens,
        temperature=sampling.temperature, stop_token="eos",  # noqa: S106
        use_cpu=policy.lm.device.type == "cpu",
    )  # fmt: skip


def _announced(batches: Iterable[PromptBatch], bridge: RewardBridge) -> Iterator[dict[str, Tensor]]:
    """Batches in TRL's form; the bridge learns of each just before TRL does."""
    for batch in batches:
        bridge.prompts = batch
        yield {"input_ids": batch.ids_BT}


class RewardBridge(nn.Module):
    """A reward model as TRL expects it: `backbone` turns tokens into "hidden states", `score` reads the rewards.

    TRL asks once an update, for the whole batch in its order (the batches are not prefetched, since they are not a
    data loader of accelerate's), and passes ids with 0 for padding, and the mask. All positions of a sequence hold its
    reward, so it does not matter which one TRL reads.
    """

    base_model_prefix = "backbone"

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.rewards = score
        self.prompts: PromptBatch

    @property
    def backbone(self) -> RewardBridge:
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        rows, width = self.prompts.rows, self.prompts.ids_BT.shape[1]
        tokens = zip(input_ids[:, width:], attention_mask[:, width:].bool(), strict=True)
        scores = self.rewards(rows, [ids[mask].tolist() for ids, mask in tokens])
        rewards_B = torch.tensor(scores, device=input_ids.device)
        return SimpleNamespace(hidden_states=(rewards_B[:, None, None].expand(*input_ids.shape, 1),))

    def score(self, hidden_BT1: Tensor) -> Tensor:
        return hidden_BT1
