"""Options of the query rewriter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forage.agent.prompts import REWRITE, RewriteMode
from forage.errors import UserError, check_at_least_one, check_at_least_zero


@dataclass(frozen=True)
class RewriteOptions:
    """What is asked of the model, and what becomes of its answer."""

    mode: RewriteMode = "append"
    """Search with the query and what the model writes (append), or with that alone (replace)."""
    query_weight: int = 3
    """In append, how often the query is said before it: BM25 counts words."""
    instruction: str = REWRITE
    """What the model is told to do with the query."""
    max_prompt_tokens: int = 256
    """Queries whose prompt is longer are left out, and told."""

    def check(self) -> None:
        for name in ("query_weight", "max_prompt_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least 1")
        if not self.instruction.strip():
            raise UserError("--instruction is empty; say what the model shall write")


@dataclass(frozen=True)
class PPOOptions:
    """PPO's own numbers."""

    batch_size: int = 4
    """Episodes of an update."""
    micro_batch_size: int = 0
    """Episodes of a training pass, to save memory; must divide the batch. 0 takes the batch at once."""
    ppo_epochs: int = 4
    """Optimiser steps on the same episodes."""
    learning_rate: float = 1e-5
    """Of AdamW."""
    max_norm: float = 1.0
    """Gradients of policy and value model together are cut to this norm; 0 leaves them."""
    clip_range: float = 0.2
    """How far the ratio may move from 1."""
    value_clip_range: float = 0.2
    """How far a value may move from what it was at sampling."""
    gamma: float = 1.0
    """Discount of later rewards."""
    gae_lambda: float = 0.95
    """GAE's lambda."""
    value_coef: float = 0.1
    """Weight of the value model's loss."""
    kl_coef: float = 0.05
    """What a nat of KL to the untrained model costs in reward."""

    def check(self) -> None:
        check_at_least_one(self, "batch_size", "ppo_epochs")
        if self.micro_batch_size < 0 or self.batch_size % (self.micro_batch_size or 1):
            raise UserError(f"--micro-batch-size {self.micro_batch_size} must divide --batch-size {self.batch_size}")
        for name in ("clip_range", "value_clip_range"):
            if getattr(self, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must be above 0")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must lie between 0 and 1")
        check_at_least_zero(self, "learning_rate", "max_norm", "value_coef", "kl_coef")

    @property
    def micro_batch(self) -> int:
        return self.micro_batch_size or self.batch_size


ValueKind = Literal["auto", "separate", "shared"]


@dataclass(frozen=True)
class SamplingOptions:
    """How rewrites are drawn."""

    max_new_tokens: int = 32
    """Longest rewrite."""
    temperature: float = 0.7
    """Of sampling, and of the log-probabilities that are trained."""
    top_p: float = 0.9
    """Sample from the likeliest tokens that have this share together; under 1 the gradient is a little biased."""

    def check(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"--max-new-tokens {self.max_new_tokens} must be at least 1")
        if self.temperature <= 0:
            raise UserError("--temperature 0 writes the same each time; training needs it above 0")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top-p {self.top_p} must lie over 0 and be at most 1")


@dataclass(frozen=True)
class ActorOptions:
    """What is trained."""

    lora_rank: int = 0
    """Train a LoRA adapter of this rank, in fp32 on a base that stays as it is; 0 trains all weights in fp32."""
    value: ValueKind = "auto"
    """The value model: a whole second model (separate: as many weights, gradients and Adam's two moments again), or a
    head on what the policy sees (shared: next to nothing). auto is separate, with LoRA shared."""

    def check(self) -> None:
        check_at_least_zero(self, "lora_rank")
        if self.lora_rank and self.value == "separate":
            raise UserError("--value separate trains a whole second model, which --lora-rank avoids; leave one out")

    @property
    def shared(self) -> bool:
        return self.value == "shared" or (self.value == "auto" and self.lora_rank > 0)


@dataclass(frozen=True)
class WarmOptions:
    """The warm start; none by default."""

    warm_steps: int = 0
    """Updates of it; 0 leaves it out."""
    warm_words: int = 12
    """How many of a document's first words are learnt to be written."""
    warm_batch_size: int = 8
    """Queries of an update."""
    warm_learning_rate: float = 5e-5
    """Of AdamW, falling to 0."""

    def check(self) -> None:
        check_at_least_one(self, "warm_words", "warm_batch_size")
        if self.warm_steps < 0 or self.warm_learning_rate <= 0:
            raise UserError("--warm-steps must be at least 0, and --warm-learning-rate above 0")
