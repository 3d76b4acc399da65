"""The same update by TRL's GRPOTrainer, which is handed the very same episodes instead of sampling its own."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from bench.gpu_rows.device import measured
from bench.gpu_rows.episodes import made_episodes, update_flops
from bench.gpu_rows.models import trained_policy
from bench.gpu_rows.scale import Scale
from bench.gpu_rows.update import OPTIONS, RATE, speed, trained_weights, warm_up
from forage.agent.episode import Episode
from forage.grpo.learner import Learner
from forage.grpo.update import UpdateContext, prepare


def measure_trl(scale: Scale, *, liger: bool = False) -> dict[str, Any]:
    """One optimizer step of TRL, in bf16 with activations recomputed, after a warm-up by our own code."""
    for library in ("trl", *(["liger_kernel"] if liger else [])):
        importlib.import_module(library)  # first, so that a missing one costs no time
    episodes = made_episodes(scale)
    policy = trained_policy(scale.policy, checkpointing=True)
    batch = prepare(episodes, OPTIONS)
    warm_up(Learner(policy), batch, UpdateContext(OPTIONS, RATE, 1.0, False), scale.trl_rows * scale.longest)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(scale, policy, episodes, folder, liger=liger)
        flops = update_flops(scale.policy, episodes, trained_weights(policy))
        seconds, peak = measured(trainer.train)
    loss = trainer.state.log_history[-1].get("train_loss")
    return speed(episodes, flops, seconds, peak) | {"rows": scale.trl_rows, "policy_loss": loss}


def make_trainer(scale: Scale, policy: Any, episodes: Sequence[Episode], folder: str, *, liger: bool) -> Any:
    from datasets import Dataset

    trl: Any = importlib.import_module("trl")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    gpu = torch.cuda.is_available()
    arguments = trl.GRPOConfig(
        output_dir=folder, use_cpu=not gpu, bf16=gpu, gradient_checkpointing=True, report_to="none",
        save_strategy="no", logging_strategy="no", disable_tqdm=True, max_completion_length=scale.longest,
        num_generations=scale.group, per_device_train_batch_size=scale.trl_rows,
        gradient_accumulation_steps=scale.episodes // scale.trl_rows, max_steps=1, learning_rate=RATE,
        lr_scheduler_type="constant", loss_type="dapo", beta=0.0, use_liger_kernel=liger,
    )  # fmt: skip
    questions = list(dict.fromkeys(episode.question_id for episode in episodes))
    return trl.GRPOTrainer(
        policy, [alternating_rewards], arguments, train_dataset=Dataset.from_dict({"prompt": questions}),
        processing_class=word_tokenizer(scale.policy["vocab_size"]), rollout_func=player(episodes, scale.prompt),
    )  # fmt: skip


def player(episodes: Sequence[Episode], prompt: int) -> Any:
    """TRL's rollout function: the stored episodes, in the order of its prompts, each named once per generation."""

    def play(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        del trainer
        left = {name: [e for e in episodes if e.question_id == name] for name in dict.fromkeys(prompts)}
        played = [left[name].pop(0) for name in prompts]
        return {
            "prompt_ids": [list(episode.ids[:prompt]) for episode in played],
            "completion_ids": [list(episode.ids[prompt:]) for episode in played],
            "logprobs": [list(episode.logprobs[prompt:]) for episode in played],
            "env_mask": [list(episode.mask[prompt:]) for episode in played],
        }

    return play


def alternating_rewards(completions: Sequence[Any], **_: Any) -> list[float]:
    return [float(number % 2) for number in range(len(completions))]


def word_tokenizer(words: int) -> Any:
    """A tokenizer that names each token by its number; TRL decodes what was sampled."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast
    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return fast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w1")
