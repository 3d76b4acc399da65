"""Options of GRPO: the loss, the update, demonstrations, guards."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from forage.agent.combination import Method
from forage.errors import UserError, check_at_least_one, check_at_least_zero

AdvantageMethod = Literal["grpo", "dr_grpo", "rloo", "reinforce++", "none"]


@dataclass(frozen=True)
class LossOptions:
    """How the loss is made."""

    loss: Literal["clip", "gspo", "cispo"] = "clip"
    """What the probability ratio of trained to sampling policy does. clip: PPO's clipped ratio of each token, as in
    GRPO (arXiv 2402.03300). gspo: one ratio for an episode, the geometric mean of its tokens' (arXiv 2507.18071).
    cispo: the clipped ratio weighs the token's log-probability, so that no token loses its gradient (arXiv
    2506.13585)."""
    clip_low: float = 0.2
    """The ratio is clipped below 1 minus this. gspo: 3e-4. cispo: 1, which is no bound."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 plus this. DAPO: 0.28 (arXiv 2503.14476). gspo: 4e-4. cispo: 4."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """What all tokens' losses become one by. token: their mean over the step, so that long episodes count more (DAPO).
    sequence: the mean over an episode, then over episodes (GRPO). constant: their sum over episodes times
    --constant-length (Dr. GRPO, arXiv 2503.20783)."""
    constant_length: int = 0
    """With --aggregation constant: the length that an episode's sum is divided by, such as the most tokens that the
    policy may sample in one."""
    beta: float = 0.0
    """Weight of the KL divergence to the policy that training began with; 0 needs no reference."""
    unbiased_kl: bool = False
    """Multiply the KL term by the ratio, so that its gradient is that of the reverse KL (DeepSeek-V3.2, arXiv
    2512.02556; TRL's default). Without, it is GRPO's k3."""
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "token_truncate"
    """What is done about an engine whose log-probabilities are not the trainer's: weigh by the ratio of trainer to
    engine, of each token or of the whole episode, cut to the cap (truncate: TIS, fengyao.notion.site/off-policy-rl) or
    left out beyond the cap or its inverse (mask: IcePop, arXiv 2510.18855)."""
    correction_cap: float = 2.0
    """Bound of that weight."""

    def check(self) -> None:
        """Refuse what can't be meant, before a model is loaded."""
        if not 0 < self.clip_low <= 1:
            raise UserError(f"--clip-low {self.clip_low} must be above 0 and at most 1, which is no lower bound")
        if self.clip_high <= 0:
            raise UserError(f"--clip-high {self.clip_high} must be above 0; 0.2 is usual, DAPO takes 0.28")
        if self.aggregation == "constant" and self.constant_length < 1:
            raise UserError(
                f"--constant-length {self.constant_length} must be at least 1 with --aggregation constant; "
                "give the most tokens that an episode may sample"
            )
        if self.beta < 0:
            raise UserError(f"--beta {self.beta} must be at least 0; 0 leaves the KL term out")
        if self.correction_cap <= 1:
            raise UserError(f"--correction-cap {self.correction_cap} must be above 1, the weight of engines that agree")


@dataclass(frozen=True)
class UpdateOptions:
    """How the policy is changed."""

    loss: LossOptions = field(default_factory=LossOptions)
    learning_rate: float = 5e-5
    """Of AdamW."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on from there; linear and cosine end at 0."""
    weight_decay: float = 0.0
    """Of AdamW."""
    max_norm: float = 1.0
    """Gradients are cut to this norm."""
    epochs: int = 1
    """Updates on the same episodes."""
    combine: Method = "uniform"
    """How the rewards become one; gdpo normalises each for itself."""
    advantage: AdvantageMethod = "grpo"
    """How a group's rewards become advantages."""
    learn_from: int = 0
    """Episodes of each group that are learnt from: those whose rewards vary most, compared with one another; 0 for all.
    Where an update costs more than playing, half of a group teaches nearly as much as all of it."""
    overlong: Literal["keep", "mask", "punish"] = "keep"
    """Episodes that ran out of tokens: trained on as they are; left out of the loss; or their reward lowered, the more
    the closer they came to --max-tokens (punish)."""
    overlong_margin: int = 256
    """Tokens before --max-tokens from which on punish begins."""
    token_budget: int = field(default_factory=lambda: 16384 if torch.cuda.is_available() else 1024)
    """Tokens of a micro-batch, at most. Halved when memory runs out."""
    share_prompts: bool = True
    """Compute the prompt of a group's episodes once. Not done with --gradient-checkpointing, or --sharding."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: a third more time, a fraction of the memory."""

    def check(self) -> None:
        self.loss.check()
        check_at_least_one(self, "epochs", "token_budget")
        check_at_least_zero(self, "learning_rate", "warmup_steps", "weight_decay")
        if self.max_norm <= 0:
            raise UserError(f"--max-norm {self.max_norm} leaves no gradient; give more than 0")
        if self.learn_from < 0 or self.learn_from == 1:
            raise UserError(f"--learn-from {self.learn_from} leaves nothing to compare; give 2 or more, or 0 for all")


@dataclass(frozen=True)
class GuardOptions:
    """What counts as a collapse, and what is done then."""

    on_collapse: Literal["stop", "rollback", "warn"] = "stop"
    """stop ends the run; rollback goes on from an older adapter with a fresh optimiser; warn only notes it."""
    window: int = 3
    """Steps whose mean is looked at, so that one bad step is none."""
    least_share: float = 0.5
    """Well-formed episodes and searches an episode may not fall below this share of the best they were in this run."""
    least_entropy: float = 0.005
    """Nats a token; below, all episodes of a question are the same, and nothing can be compared."""
    most_flat: int = 10
    """Steps in a row of which no two episodes of a question were rewarded differently, so that nothing was learnt."""
    most_kl: float = 10.0
    """Of the policy to the one that training began with, where --beta measures it."""
    most_mismatch: float = 0.1
    """Mean KL of the sampler to the trainer; above, an adapter is stale, or precisions differ too far."""
    rollback_steps: int = 5
    """How many adapters back a rollback goes."""
    most_rollbacks: int = 3
    """After so many a run stops all the same."""

    def check(self) -> None:
        check_at_least_one(self, "window", "rollback_steps", "most_flat")


@dataclass(frozen=True)
class GuidanceOptions:
    """What the policy is shown while it trains."""

    demonstrations: Path | None = None
    """A file of episodes to go on learning from beside its own, such as the demonstrations.jsonl of sft_train.py."""
    demonstrations_per_step: int = 4
    """Of them, in rounds."""
    demonstration_weight: float = 0.2
    """Of their loss, the mean over their tokens; the policy's own has weight 1."""
    demonstration_steps: int = 0
    """Steps over which that weight falls to 0; 0: it stays."""

    def check(self) -> None:
        check_at_least_one(self, "demonstrations_per_step")
        check_at_least_zero(self, "demonstration_weight", "demonstration_steps")
        if self.demonstrations and not self.demonstrations.is_file():
            raise UserError(f"--demonstrations {self.demonstrations} is not there; sft_train.py writes such a file")
