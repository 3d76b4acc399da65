"""Options of GRPO: the run, the loss, the update, guards."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from forage.agent.options import Credit
from forage.agent.rewards import Method
from forage.arguments import TRUST, fixed
from forage.errors import UserError, check_at_least_one
from forage.files import check_apart
from forage.optimizer import MemoryOptions
from forage.processes import Offload, Sharding, check_sharding, world
from forage.rollout.options import RolloutOptions
from forage.runs.trackers import Choice

LossName = Annotated[Literal["clip", "gspo", "cispo", "dppo"] | str, TRUST]  # keys of LOSSES, or module:name
AdvantageName = Annotated[Literal["grpo", "dr_grpo", "rloo", "reinforce++", "best", "maxrl", "none"] | str, TRUST]
HINT = "hint"  # a teacher that is the policy itself, with get_hints of grpo_rollout.py before its eyes


@dataclass(frozen=True)
class LossOptions:
    """The loss."""

    loss: LossName = "clip"
    """clip: PPO's clipped ratio per token, as in GRPO (arXiv 2402.03300). gspo: one ratio per episode, the geometric
    mean of its tokens' ratios (2507.18071). cispo: weight each token's log-probability by the clipped ratio, so that no
    token loses its gradient (2506.13585). dppo: the plain ratio, without the tokens whose probability has moved further
    than the bounds already, up for a gain or down for a loss (2602.04879). module:name: a function of your own, as
    those of forage/grpo/losses.py."""
    clip_low: float = 0.2
    """Clip the ratio below 1 minus this. Usual with gspo: 3e-4; with cispo: 1, no lower bound;
    with dppo, where a probability is bounded: 0.15."""
    clip_high: float = 0.2
    """Clip the ratio above 1 plus this. Usual in DAPO: 0.28 (2503.14476); with gspo: 4e-4; with cispo: 4."""
    aggregation: Literal["token", "sequence", "constant"] = "token"
    """token: mean over all tokens of the step (DAPO). sequence: mean over each episode's tokens, then over episodes
    (GRPO). constant: sum divided by 512 times the number of episodes (Dr. GRPO, 2503.20783)."""
    constant_length: int = fixed(512)
    """With --aggregation constant: the length to divide by, such as the maximum tokens an episode may sample."""
    beta: float = 0.0
    """Weight of the KL divergence from the starting policy. 0, as in DAPO and Dr. GRPO, skips it and needs no
    reference; DeepSeekMath uses 0.04 (--preset deepseekmath)."""
    unbiased_kl: bool = fixed(False)
    """Multiply the KL term by the ratio, which makes its gradient that of the reverse KL (DeepSeek-V3.2, 2512.02556;
    TRL's default). Off: GRPO's k3 estimator."""
    correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "token_truncate"
    """Correct for a sampler whose probabilities differ from the trainer's: weight each token, or each whole episode
    (sequence), by the trainer's probability over the sampler's. Weights over 2 are cut to 2 (truncate: TIS,
    fengyao.notion.site/off-policy-rl), or weights outside 1/2 to 2 are set to 0 (mask: IcePop, 2510.18855)."""
    correction_cap: float = fixed(2.0)
    """Cap of that ratio; a mask also drops ratios below 1 over this."""
    teacher_weight: float = 1.0
    """With --teacher: how much a token's advantage rises for each nat by which it is likelier to the teacher, or the
    weight of the divergence."""
    teacher_cap: float = fixed(5.0)
    """The most nats of one token that count, above or below 0: a token that is out of the question for the teacher
    would outweigh all others of its step."""

    def check(self) -> None:
        """Refuse what can't be meant, before a model is loaded."""
        if not 0 < self.clip_low <= 1:
            raise UserError(f"--clip-low {self.clip_low} must be above 0 and at most 1 (1: no lower bound)")
        if self.clip_high <= 0:
            raise UserError(f"--clip-high {self.clip_high} must be above 0; 0.2 is usual, DAPO takes 0.28")


@dataclass(frozen=True)
class UpdateOptions:
    """The update of the policy."""

    loss: LossOptions = LossOptions()
    learning_rate: float = 5e-5
    """Learning rate of AdamW."""
    memory: MemoryOptions = MemoryOptions()
    epochs: int = 1
    """Updates made from each step's episodes."""
    combine: Method = "uniform"
    """How an episode's rewards are combined into one (forage/agent/rewards.py): their mean (uniform), a mean
    weighted by how much each varies (std) or how much they vary together (pca), or their length as a vector (l2).
    "overall" in plots and evaluations is always the mean."""
    advantage: AdvantageName = "grpo"
    """How a group's rewards become advantages. grpo: minus the group's mean, divided by its deviation. dr_grpo: minus
    the mean. rloo: minus the mean of the others. reinforce++: minus the mean, divided by the batch's deviation. best: 1
    for the best episode and 0 for the others, to imitate the best (expert iteration). maxrl: minus the mean, divided by
    it, for rewards of 0 or 1 (2602.02710). none: 0, so that a --teacher alone teaches. module:name: your own, as those
    of forage/grpo/losses.py."""
    learn_from: int = 0
    """Train only on the N episodes of each group whose rewards vary most (PODS, 2504.13818). This pays if updates cost
    more than playing. 0: train on all."""
    credit: Credit = "episode"
    """What a token is credited with: its episode's advantage (episode), or, for the tokens of a query, also what the
    search would lose without their word (words). The latter teaches faster which words are worth saying."""
    teacher: Annotated[str, TRUST] = ""
    """Who marks every token that the policy sampled: the token's advantage rises by how much likelier it is to the
    teacher than to the policy (on-policy distillation). A policy folder or a run made from the same base, by its newest
    adapter; http://HOST:PORT, a vLLM server of a larger model with the same tokenizer (without --enable-lora, or
    vLLM 0.32 crashes); or hint: the policy itself, told what get_hints of grpo_rollout.py says of the
    question (2601.20802). Alone with --advantage none."""
    teach: Literal["sampled", "all"] = "sampled"
    """What --teacher says: how likely the tokens are that were sampled, or how likely each of the vocabulary is in
    their places: the loss then has the KL divergence from teacher to policy. All teaches faster, and what is never
    sampled too, but takes a teacher of this process, and one process."""
    word_cost: float = 0.0
    """With --credit words: what each word of a query costs, on a scale where 1 is all that a search can find. A small
    cost such as .005 keeps the policy from adding useless words."""
    overlong: Literal["keep", "mask", "punish"] = "keep"
    """What to do with long episodes. keep: train on them as they are. mask: leave those that ran out of tokens out of
    the loss. punish: take up to 1 from the reward over the last 256 tokens before --max-tokens."""

    @property
    def picks(self) -> bool:
        """Whether some of a group's episodes are learnt from, by what they earned or how long they are."""
        return bool(self.learn_from) or self.overlong == "mask" or self.advantage == "best" or ":" in self.advantage

    def check(self) -> None:
        for part in (self.loss, self.memory):
            part.check()
        check_at_least_one(self, "epochs")
        if self.word_cost and self.credit != "words":
            raise UserError(f"--word-cost {self.word_cost} costs nothing without --credit words; add that")
        if self.teach == "all" and (not self.teacher or "://" in self.teacher):
            raise UserError("--teach all needs a --teacher of this process: a policy, a run or hint")
        if self.advantage == "none" and not self.teacher:
            raise UserError("--advantage none leaves nothing to learn from; add --teacher")
        if self.learn_from == 1:
            raise UserError(f"--learn-from {self.learn_from} leaves nothing to compare; give 2 or more, or 0 for all")


@dataclass(frozen=True)
class GuardOptions:
    """Guards against a collapsing run."""

    on_collapse: Literal["stop", "rollback", "warn"] = "stop"
    """On a sign of collapse: stop the run (stop), go back to an older adapter with a fresh optimizer (rollback), or
    only print and record it (warn)."""
    rollback_steps: int = fixed(5)
    """How many adapters a rollback goes back."""


@dataclass(frozen=True)
class TrainOptions:
    """The run."""

    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    update: UpdateOptions = UpdateOptions()
    guard: GuardOptions = GuardOptions()
    run_dir: Path = Path("runs/grpo")
    """Run folder. A run that is already there is resumed."""
    max_steps: int = 100
    """Number of steps. Raise it to continue a finished run."""
    replace_flat: int = 0
    """Maximum questions per step to play in place of those whose episodes all earned the same, which are left out; 0:
    none."""
    rollouts: Literal["own", "service"] = "own"
    """Who plays the episodes: this process (own), or workers on the same run folder (service; grpo_rollout.py
    --follow)."""
    max_staleness: int = 0
    """With --rollouts service: how many steps workers may play ahead of the newest adapter. Older episodes are dropped.
    0: workers wait for each adapter."""
    vllm_sleep: bool = False
    """Let the vLLM server sleep except while episodes are played, so that trainer and server can take turns with the
    whole of one GPU. Needs --engine vllm and --rollouts own (docs/operations.md)."""
    sharding: Sharding = "none"
    """What to split among processes: gradients and optimizer state (zero2), the weights too (zero3, fsdp2), or nothing
    (none). zero2 and zero3 are DeepSpeed's. Also works with one process."""
    offload: Offload = "none"
    """Keep the optimizer's state in CPU memory (optimizer; with zero2 or zero3), or the weights too (all; with
    zero3)."""
    sequence_parallel: int = 1
    """Number of processes that split the tokens of one long episode (Ulysses). Not with zero3."""
    eval_every: int = 10
    """Steps between evaluations. There is also one before the first step and one after the last. 0: never evaluate."""
    eval_questions: int = 32
    """Questions of eval.jsonl to evaluate on, always the same, one greedy episode each; 0: all."""
    keep_adapters: int = 10
    """Keep the last N adapters; 0: all. The first, those that were evaluated, and those that a rollback or a worker may
    need are always kept."""
    report_to: Choice = "auto"
    """Tracker to log to, besides the run folder. auto: trackio if it is installed."""
    price_per_hour: float = 0.0
    """Price of an hour of the machines, by which the run says what it cost."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        for part in (self.rollout, self.update):
            part.check()
        check_sharding(self.sharding, self.sequence_parallel, self.offload)
        reads = {"--data": self.rollout.data, "--policy": self.rollout.policy}
        check_apart("--run-dir", self.run_dir, reads, nested=True)
        check_at_least_one(self, "max_steps")
        if self.update.teach == "all" and (world() > 1 or self.sharding != "none"):
            raise UserError("--teach all works in one process without --sharding; leave out one of them")
        if self.rollout.num_rollouts < 2:
            raise UserError("--num-rollouts 1 leaves nothing to compare an episode with; give at least 2")
        if self.rollout.temperature <= 0:
            raise UserError("--temperature 0 plays the same episode every time; training needs more than 0")
        if self.max_staleness and self.rollouts == "own":
            raise UserError("--max-staleness needs workers that play ahead: give --rollouts service")
        if self.vllm_sleep:
            self.check_sleep()

    def check_sleep(self) -> None:
        """Refuse to put a server to sleep that someone else may be using, or that isn't there."""
        if self.rollouts == "service":
            raise UserError(
                "--vllm-sleep works in lock-step only, as workers would find their server asleep; give --rollouts own"
            )
        if self.rollout.engine.engine != "vllm":
            raise UserError("--vllm-sleep needs a vLLM server; give --engine vllm")
        if world() > 1:
            raise UserError("--vllm-sleep is for one GPU; start one process, or leave it out")


# Options that may change when a run is resumed; with any other change it would be another run.
FREE = (
    "run_dir", "max_steps", "report_to", "price_per_hour", "max_staleness", "vllm_sleep", "sharding", "offload",
    "sequence_parallel", "keep_adapters", "update.memory.token_budget", "update.memory.gradient_checkpointing",
    "update.learning_rate",
    # Compared by content, in the run's manifest.
    "rollout.data", "rollout.policy", "rollout.weights",
    "rollout.concurrency", "rollout.engine.engine", "rollout.engine.urls", "rollout.engine.patience",
    "rollout.engine.timeout", "rollout.address.store", "rollout.address.store_patience",
    *(f"guard.{item.name}" for item in fields(GuardOptions)),
)  # fmt: skip


# Presets: the settings of published methods by one flag, --preset NAME. A flag beside it wins over the preset


PRESETS: dict[str, dict[str, Any]] = {
    # GRPO as it was first described (arXiv 2402.03300): a mean over each episode, equal bounds, a KL term.
    "deepseekmath": {
        "loss": "clip", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "sequence", "beta": 0.04,
        "advantage": "grpo", "epochs": 1,
    },
    # 2503.14476: a higher upper bound, a mean over tokens, questions without a signal replaced, a soft length penalty.
    "dapo": {
        "loss": "clip", "clip_low": 0.2, "clip_high": 0.28, "aggregation": "token", "beta": 0.0, "advantage": "grpo",
        "replace_flat": 8, "overlong": "punish",
    },
    # 2503.20783: no division by length or deviation. The constant only scales the gradient, which AdamW undoes.
    "dr_grpo": {
        "loss": "clip", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "constant",
        "beta": 0.0, "advantage": "dr_grpo",
    },
    # 2507.18071: one ratio per episode, so bounds of another size.
    "gspo": {
        "loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence", "beta": 0.0,
        "advantage": "grpo",
    },
    # 2506.13585: every token keeps its gradient; no lower bound.
    "cispo": {
        "loss": "cispo", "clip_low": 1.0, "clip_high": 4.0, "aggregation": "token", "beta": 0.0, "advantage": "grpo",
    },
}  # fmt: skip
