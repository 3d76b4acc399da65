"""Options of train_ppo.py: what is trained, on what data, and with which numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from forage.agent.prompts import REWRITE, RewriteMode
from forage.errors import UserError, check_at_least_one, check_at_least_zero, flag
from forage.machine import Dtype
from forage.optimizer import OptimizerOptions
from forage.outputs import check_apart, check_replaceable
from forage.runs.trackers import Choice
from forage.store.options import Mode

ValueKind = Literal["auto", "separate", "shared"]
MARK = ".query_rewriter"  # marks a model folder that train_ppo.py wrote and may replace


@dataclass(frozen=True)
class RewriteOptions:
    """How the model is asked for a query, and what is searched for."""

    rewrite: RewriteMode = "append"
    """What is searched for: append is the question followed by what the model writes, replace is what it writes alone.
    This decides what is trained; both are evaluated."""
    query_weight: int = 3
    """With append, repeat the question N times before the model's words: BM25 counts repeats."""
    instruction: str = REWRITE
    """Instruction given to the model before each question."""
    max_prompt_tokens: int = 256
    """Leave out, and report, questions with a longer prompt."""

    def check(self) -> None:
        check_at_least_one(self, "query_weight", "max_prompt_tokens")
        if not self.instruction.strip():
            raise UserError("--instruction is empty; say what the model should write")


@dataclass(frozen=True)
class SamplingOptions:
    """Sampling of rewrites."""

    max_new_tokens: int = 32
    """Maximum tokens of a rewrite."""
    temperature: float = 0.7
    """Sampling temperature; log-probabilities are computed at the same temperature."""
    top_p: float = 0.9
    """Sample from the most likely tokens that together have this probability; below 1 biases the gradient slightly."""

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
    """Train a LoRA adapter of this rank, in fp32 on a frozen base model, which is the reference too, with the adapter
    off; 0 trains all weights in fp32, with copies of the model for reference and value model."""
    dtype: Dtype = "auto"
    """What the base of an adapter computes in; auto: bf16 where the device has it, else fp32. With --lora-rank 0 it
    is always fp32."""
    value: ValueKind = "auto"
    """Value model: separate is a second full model, with its own gradients and Adam state; shared is a small head
    on the policy's hidden states; auto is shared with LoRA, and separate without."""

    def check(self) -> None:
        check_at_least_zero(self, "lora_rank")
        if self.lora_rank and self.value == "separate":
            raise UserError(
                "--value separate trains a second full model, which LoRA avoids; give --lora-rank 0 with it"
            )

    @property
    def shared(self) -> bool:
        return self.value == "shared" or (self.value == "auto" and self.lora_rank > 0)


@dataclass(frozen=True)
class AdamOptions:
    """The optimizer (AdamW)."""

    learning_rate: float | None = None
    """Learning rate; left out: 1e-4 for LoRA, 1e-5 for all weights."""
    weight_decay: float = 0.0
    """Weight decay."""
    max_norm: float = 1.0
    """Clip the gradient to this norm."""

    def settled(self, actor: ActorOptions) -> OptimizerOptions:
        rate = self.learning_rate
        if rate is None:
            rate = 1e-4 if actor.lora_rank else 1e-5
        return OptimizerOptions(rate, self.weight_decay, self.max_norm)


@dataclass(frozen=True)
class PPOOptions:
    """PPO."""

    batch_size: int = 4
    """Episodes per update."""
    micro_batch_size: int = 0
    """Episodes per forward and backward pass of all processes together, to save memory; must divide --batch-size. 0:
    the whole batch."""
    ppo_epochs: int = 4
    """Optimizer steps on the episodes of an update."""
    clip_range: float = 0.2
    """How far the probability ratio may move from 1."""
    value_clip_range: float = 0.2
    """How far a value may move from the one at sampling time."""
    gamma: float = 1.0
    """Discount of later rewards."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation: 0 relies on the value model alone, 1 on the rewards alone."""
    value_coef: float = 0.1
    """Weight of the value loss."""
    kl_coef: float = 0.05
    """Reward penalty per nat of KL from the untrained model."""

    def check(self) -> None:
        check_at_least_one(self, "batch_size", "ppo_epochs")
        if self.micro_batch_size < 0 or self.batch_size % (self.micro_batch_size or 1):
            raise UserError(f"--micro-batch-size {self.micro_batch_size} must divide --batch-size {self.batch_size}")
        for name in ("clip_range", "value_clip_range"):
            if getattr(self, name) <= 0:
                raise UserError(f"{flag(name)} {getattr(self, name)} must be above 0")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{flag(name)} {getattr(self, name)} must be between 0 and 1")
        check_at_least_zero(self, "value_coef", "kl_coef")

    @property
    def micro_batch(self) -> int:
        return self.micro_batch_size or self.batch_size


@dataclass(frozen=True)
class WarmOptions:
    """Supervised warm start before PPO."""

    warm_steps: int = 0
    """Updates of the supervised warm start; 0 skips it."""
    warm_words: int = 12
    """Learn to write the first N words of a relevant document."""
    warm_batch_size: int = 8
    """Questions per warm-start update."""
    warm_learning_rate: float | None = None
    """AdamW learning rate of the warm start, which falls linearly to 0; left out: 5e-4 for LoRA, 5e-5 for all
    weights."""

    def check(self) -> None:
        check_at_least_one(self, "warm_words", "warm_batch_size")
        check_at_least_zero(self, "warm_steps")
        if self.warm_learning_rate is not None and self.warm_learning_rate <= 0:
            raise UserError(f"--warm-learning-rate {self.warm_learning_rate} must be above 0")

    def rate(self, actor: ActorOptions) -> float:
        if self.warm_learning_rate is not None:
            return self.warm_learning_rate
        return 5e-4 if actor.lora_rank else 5e-5


@dataclass(frozen=True)
class Options:
    """Model, data and run."""

    data: Path | None = None
    """Folder with train.jsonl and pubmed_corpus.json; by default data/rewriter or data, or else the sample data."""
    base_model: str = "auto"
    """Causal language model to train: a folder, a hub name such as gpt2, microsoft/DialoGPT-small or
    Qwen/Qwen2.5-1.5B-Instruct, or auto (a small one); a chat template is not required."""
    output_dir: Path = Path("models/query_augmentation_ppo")
    """Where the trained model is written."""
    run_dir: Path = Path("runs/ppo")
    """Run folder; a run found there is resumed."""
    mode: Mode = "sparse"
    """Rank by embeddings (dense), by words (sparse, BM25), or by both (hybrid)."""
    embedder: str = "auto"
    """Embedding model for dense and hybrid, as in data_prep.py."""
    reranker: str = ""
    """Rerank the best 100 with this cross-encoder: a folder or hub name, e.g. cross-encoder/ms-marco-MiniLM-L6-v2."""
    store: str | None = None
    """Search this store, made by data_prep.py, instead of building one; its chunks must be the documents of --data. Or
    http://HOST:PORT of its server."""
    k: int = 5
    """Documents per search."""
    reward: str = "recall"
    """recall, ndcg or mrr of the best k; or a class of your own with
    compute_reward(self, query, relevant_doc_ids), as module:Class."""
    backend: Literal["auto", "trl", "own"] = "auto"
    """Training loop: TRL's trainer, or our own, which is faster and runs on several processes too (torchrun); auto is
    TRL's for one process, and our own for several."""
    query: RewriteOptions = field(default_factory=RewriteOptions)
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    actor: ActorOptions = field(default_factory=ActorOptions)
    ppo: PPOOptions = field(default_factory=PPOOptions)
    optimizer: AdamOptions = field(default_factory=AdamOptions)
    warm: WarmOptions = field(default_factory=WarmOptions)
    max_steps: int = 6
    """Number of updates; the default is only enough for a first look. May be raised when a run is resumed."""
    eval_questions: int = 32
    """Number of held-out questions to measure on, before and after training; 0: all."""
    pseudo_answer_tokens: int = 48
    """Maximum tokens of a pseudo-answer (HyDE), a baseline that needs no training."""
    save_every: int = 25
    """Updates between checkpoints; a checkpoint is three times the size of the trained weights."""
    report_to: Choice = "auto"
    """Also send metrics to wandb (offline without a key), tensorboard or trackio; auto is wandb where it is
    installed, else trackio."""
    seed: int = 0
    """Seed of question order and sampling."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        adam = self.optimizer.settled(self.actor)
        for part in (self.query, self.sampling, self.actor, self.ppo, adam, self.warm):
            part.check()
        check_at_least_one(self, "k", "max_steps", "save_every", "pseudo_answer_tokens")
        check_at_least_zero(self, "eval_questions")
        self.check_outputs()

    def check_processes(self, count: int) -> None:
        """Refuse what several processes can't share."""
        if count > 1 and self.backend == "trl":
            raise UserError(
                "--backend trl is for one process: TRL scales each process's advantages on their own, so two would "
                "train otherwise than one; give --backend own"
            )
        rows = {"--warm-batch-size": self.warm.warm_batch_size if self.warm.warm_steps else count}
        rows |= {"--batch-size": self.ppo.batch_size, "--micro-batch-size": self.ppo.micro_batch}
        for name, number in rows.items():
            if number < count:
                raise UserError(f"{name} {number} is too few for {count} processes to share; give at least {count}")

    def check_outputs(self) -> None:
        """Refuse outputs that would go over an input, or over what this script did not make."""
        reads = {"--data": self.data, "--base-model": self.base_model, "--store": self.store}
        check_replaceable("--output-dir", self.output_dir, MARK)
        check_apart("--output-dir", self.output_dir, reads)
        check_apart("--run-dir", self.run_dir, reads, nested=True)
        if self.output_dir.resolve() in (self.run_dir.resolve(), *self.run_dir.resolve().parents):
            raise UserError(f"--output-dir {self.output_dir} would replace --run-dir {self.run_dir}; choose another")
