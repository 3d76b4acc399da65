"""PPO by TRL's trainer, with the same interface as our own loop in forage/rewriter/ppo.py.

TRL's train() is one function that takes its batches from `self.dataloader` and reports through `self.log`. So we supply
the batches (an update's rows must be known, not prefetched); figures and checkpoints leave through `log`, which is
called once per update after its optimizer steps; and a run resumes by training the remaining updates, since all else
that train() keeps between updates is weights and optimizer state. Not used, because in trl 1.12 they do nothing or
mislead: bf16, gradient_checkpointing, mini-batches with accumulation (only some of them step), missing_eos_penalty
(punishes every response that is cut at 32 tokens), num_sample_generations, and its checkpoints (no value model).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from forage.rewriter.actors import Policy
from forage.rewriter.data import Row
from forage.rewriter.options import PPOOptions
from forage.rewriter.ppo import PromptBatch, Score, Training


def train_trl(
    training: Training, batches: Iterable[PromptBatch], updates: int, *, rows: list[Row], padded_tokenizer: Any,
    run_dir: Path,
) -> None:  # fmt: skip
    """One update on each of the next `updates` batches, whose prompts must all be among `rows`."""
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
    bridge = RewardBridge(rows, training.score)
    parts: dict[str, Any] = {
        "args": config, "processing_class": padded_tokenizer, "model": actors.policy, "ref_model": actors.reference,
        "reward_model": bridge, "value_model": actors.value_model,
        "train_dataset": Dataset.from_dict({"input_ids": [list(row.prompt) for row in rows[: options.batch_size]]}),
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
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=options.batch_size // options.micro_batch, num_mini_batches=1,
        # In one piece: TRL would pad several pieces with an id that the logits don't have.
        local_rollout_forward_batch_size=options.batch_size,
        num_ppo_epochs=options.ppo_epochs, kl_coef=options.kl_coef, cliprange=options.clip_range,
        cliprange_value=options.value_clip_range, vf_coef=options.value_coef,
        gamma=options.gamma, lam=options.gae_lambda, response_length=sampling.max_new_tokens,
        temperature=sampling.temperature, stop_token="eos",  # noqa: S106
        use_cpu=policy.lm.device.type == "cpu",
    )  # fmt: skip


def _announced(batches: Iterable[PromptBatch], bridge: RewardBridge) -> Iterator[dict[str, torch.Tensor]]:
    """Batches in TRL's form; the bridge learns the width of each one's prompts just before."""
    for batch in batches:
        bridge.set_prompt_width(batch.ids_BT.shape[1])
        yield {"input_ids": batch.ids_BT}


class RewardBridge(nn.Module):
    """A reward model as TRL expects it: `backbone` turns tokens into "hidden states", `score` reads the rewards.

    TRL passes ids with 0 for padding and the mask, but not the row of each sequence; and because accelerate prefetches
    batches, the order in which batches were built does not tell it either. So a row is found by its exact prompt
    tokens; an unknown prompt is an error. Whoever pads the prompts calls `set_prompt_width` first. All positions of a
    sequence hold its reward, so it does not matter which one TRL reads.
    """

    base_model_prefix = "backbone"

    def __init__(self, rows: Sequence[Row], score: Score) -> None:
        super().__init__()
        self.backbone = _RewardLookup({row.prompt: row for row in rows}, score)

    def set_prompt_width(self, width: int) -> None:
        """In the next batch, responses begin at this column."""
        self.backbone.prompt_width = width

    def score(self, hidden_BT1: Tensor) -> Tensor:
        return hidden_BT1


class _RewardLookup(nn.Module):
    def __init__(self, row_by_prompt: Mapping[tuple[int, ...], Row], score: Score) -> None:
        super().__init__()
        self.row_by_prompt, self.score, self.prompt_width = row_by_prompt, score, 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        width, columns = self.prompt_width, input_ids.shape[1]
        if not 0 < width < columns:
            raise ValueError(f"responses can't begin at column {width} of {columns}")
        rows, responses = [], []
        for ids, mask in zip(input_ids, attention_mask.bool(), strict=True):
            prompt = tuple(ids[:width][mask[:width]].tolist())
            if prompt not in self.row_by_prompt:
                raise ValueError(f"no row has the prompt of {len(prompt)} tokens that begins {list(prompt[:8])}")
            rows.append(self.row_by_prompt[prompt])
            responses.append(ids[width:][mask[width:]].tolist())
        rewards_B = torch.tensor(self.score(rows, responses), device=input_ids.device)
        return SimpleNamespace(hidden_states=(rewards_B[:, None, None].expand(-1, columns, 1),))
