"""Options of train_ppo.py: what is trained, on what data, and with which numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from forage.agent.options import DEPTH
from forage.agent.prompts import RewriteMode
from forage.arguments import TRUST, fixed
from forage.errors import UserError, check_at_least_one
from forage.files import check_apart, check_replaceable
from forage.machine import Dtype
from forage.processes import world
from forage.runs.trackers import Choice
from forage.store.options import Mode, StoreAddress

MARK = ".query_rewriter"  # marks a model folder that train_ppo.py wrote and may replace

GAIN = "gain"  # the reward that looks at more than the best k documents: at DEPTH


@dataclass(frozen=True)
class RewriteOptions:
    """How the model is prompted, and what is searched for."""

    rewrite: RewriteMode = "append"
    """What is searched for: the question followed by what the model writes (append), or only what it writes (replace).
    Training and evaluation both use it."""
    query_weight: int = 3
    """With --rewrite append: repeat the question N times before the model's words, as BM25 counts repeats."""
    titles: int = 0
    """Below the question, show the model the titles (first lines) of the first N documents that the question finds; 0:
    none."""


@dataclass(frozen=True)
class SamplingOptions:
    """How rewrites are sampled."""

    max_new_tokens: int = 32
    """Maximum tokens per rewrite."""
    temperature: float = 0.7
    """Sampling temperature. Log-probabilities are computed at the same temperature."""
    top_p: float = 0.9
    """Sample only from the likeliest tokens that together have this probability. Below 1, the gradient is slightly
    biased."""

    def check(self) -> None:
        check_at_least_one(self, "max_new_tokens")
        if self.temperature <= 0:
            raise UserError(
                f"--temperature {self.temperature} always writes the same rewrite; training needs it above 0"
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top-p {self.top_p} must be above 0 and at most 1")


@dataclass(frozen=True)
class ActorOptions:
    """Which weights are trained."""

    lora_rank: int = 16
    """Train a LoRA adapter of this rank, in fp32 on a frozen base; with the adapter off, the base is also the
    reference. 0: train all weights in fp32, with a copy of the model as the reference."""
    dtype: Dtype = "auto"
    """Number type of the adapter's base. auto: bf16 if the device is faster in it, else fp32. With --lora-rank 0 it is
    always fp32."""
    value: Literal["head", "separate"] = "head"
    """PPO's value model: a head on the policy's hidden states (head), or a second model of the same size, trained like
    the policy (separate)."""
    learning_rate: float | None = None
    """Learning rate of AdamW. Left out: 1e-4 for LoRA, 1e-5 for all weights."""

    @property
    def rate(self) -> float:
        return self.learning_rate if self.learning_rate is not None else self.usual_rate

    @property
    def usual_rate(self) -> float:
        return 1e-4 if self.lora_rank else 1e-5


@dataclass(frozen=True)
class PPOOptions:
    """PPO."""

    algorithm: Literal["ppo", "grpo"] = "ppo"
    """What a rewrite is compared with: a value model's estimate (ppo), or the other rewrites of its question (grpo;
    needs --backend own and --num-rollouts above 1)."""
    batch_size: int = 4
    """Rewrites per update."""
    num_rollouts: int = 1
    """Rewrites per question in an update. Must divide --batch-size."""
    micro_batch_size: int = 0
    """Rewrites per forward and backward pass, to save memory. Must divide --batch-size; 0: the whole batch. With
    --backend trl, tokens of a pass with short rewrites weigh more."""
    ppo_epochs: int = 4
    """Optimizer steps per update, all on the same rewrites."""
    clip_range: float = 0.2
    """How far the probability ratio may move from 1."""
    value_clip_range: float = fixed(0.2)
    """How far a value may move from the one at sampling time."""
    gamma: float = fixed(1.0)
    """Discount of later rewards; a rewrite has one reward, at its end."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation: 0 relies only on the value model, 1 only on the rewards."""
    value_coef: float = fixed(0.1)
    """Weight of the value loss."""
    kl_coef: float = 0.05
    """Reward penalty per nat of KL from the model that PPO starts with (after the warm start, if there is one)."""

    def check(self) -> None:
        check_at_least_one(self, "batch_size", "ppo_epochs")
        if self.batch_size % (self.micro_batch_size or 1):
            raise UserError(f"--micro-batch-size {self.micro_batch_size} must divide --batch-size {self.batch_size}")
        if self.num_rollouts < 1 or self.batch_size % self.num_rollouts:
            raise UserError(f"--num-rollouts {self.num_rollouts} must divide --batch-size {self.batch_size}")
        if self.algorithm == "grpo" and self.num_rollouts == 1:
            raise UserError("--algorithm grpo compares rewrites of one question; give --num-rollouts 4 or so")
        if self.clip_range <= 0:
            raise UserError(f"--clip-range {self.clip_range} must be above 0")
        if not 0 <= self.gae_lambda <= 1:
            raise UserError(f"--gae-lambda {self.gae_lambda} must be between 0 and 1")

    @property
    def micro_batch(self) -> int:
        return self.micro_batch_size or self.batch_size


@dataclass(frozen=True)
class Options:
    """Model, data and run."""

    data: Path = Path("data/rewriter")
    """Folder with train.jsonl and pubmed_corpus.json, as data_prep.py writes them."""
    base_model: str = "auto"
    """Causal language model to train: a folder, a .gguf file, a hub name such as gpt2, microsoft/DialoGPT-small or
    Qwen/Qwen2.5-1.5B-Instruct, or auto (a small one). It needs no chat template."""
    output_dir: Path = Path("models/query_augmentation_ppo")
    """Folder for the trained model."""
    run_dir: Path = Path("runs/ppo")
    """Run folder. A run that is already there is resumed."""
    mode: Mode = "sparse"
    """Rank by words (sparse, BM25) or, with --store, by embeddings (dense) or by both (hybrid)."""
    store: Annotated[str, TRUST] = ""
    """Store from data_prep.py to search, or http://HOST:PORT of its server. Its chunks must be the documents in --data.
    Empty: build a BM25 store of them."""
    retriever: Annotated[str, TRUST] = ""
    """Your class that --store was built with, as module:Class."""
    k: int = 5
    """Documents per search."""
    reward: Annotated[str, TRUST] = "recall"
    """recall, ndcg or mrr: of the first k documents. gain: how much closer to the top of 100 results the relevant
    documents come than with the question alone, on a log scale. Or your own class with compute_reward(self, query,
    relevant_doc_ids), as module:Class."""
    backend: Literal["trl", "own"] = "trl"
    """Training loop: TRL's trainer (trl), or our own, which is faster (own)."""
    query: RewriteOptions = RewriteOptions()
    sampling: SamplingOptions = SamplingOptions()
    actor: ActorOptions = ActorOptions()
    ppo: PPOOptions = PPOOptions()
    warm_steps: int = 0
    """Updates of a supervised warm start before PPO; 0: none."""
    max_steps: int = 6
    """Number of updates; the default is only enough for a first look. May be raised when a run is resumed. 0: only the
    warm start, whose model goes to --output-dir."""
    eval_questions: int = 32
    """Held-out questions to measure on, before and after training; 0: all."""
    save_every: int = 25
    """Updates between checkpoints. A checkpoint is three times the size of the trained weights."""
    report_to: Choice = "auto"
    """Also send metrics to wandb (offline without a key) or trackio. auto: wandb if it is installed, else trackio if
    that is."""
    seed: int = 0
    """Seed for question order and sampling."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.sampling.check()
        self.ppo.check()
        check_at_least_one(self.query, "query_weight")
        check_at_least_one(self, "k", "save_every")
        if self.ppo.algorithm == "grpo" and self.backend == "trl":
            raise UserError("--algorithm grpo is not in TRL's loop; add --backend own")
        if self.backend == "own" and world() > 1:
            raise UserError("--backend own trains in one process; leave it out, or start one process")
        if self.ppo.micro_batch % world():
            raise UserError(f"{world()} processes can't share {self.ppo.micro_batch} rewrites (--batch-size, or "
                            "--micro-batch-size) equally; give a multiple")  # fmt: skip
        StoreAddress(self.store).check()
        if self.mode != "sparse" and not self.store:
            raise UserError(f"--mode {self.mode} needs a store with embeddings; give --store data/store")
        # No output goes over an input, or over what this script did not make.
        reads: dict[str, Path | str | None] = {
            "--data": self.data,
            "--base-model": self.base_model,
            "--store": self.store or None,
        }
        check_replaceable("--output-dir", self.output_dir, MARK)
        check_apart("--output-dir", self.output_dir, reads)
        check_apart("--run-dir", self.run_dir, reads, nested=True)
        if self.output_dir.resolve() in (self.run_dir.resolve(), *self.run_dir.resolve().parents):
            raise UserError(f"--output-dir {self.output_dir} would replace --run-dir {self.run_dir}; choose another")

    @property
    def depth(self) -> int:
        """How many documents a search finds."""
        return max(self.k, DEPTH) if self.reward == GAIN else self.k
