"""Losses: advantages from rewards, and the loss from log-probabilities. Pure functions of tensors.

Shapes: N episodes of the step, G groups, B rows and T tokens of a micro-batch.

Equivalents in TRL 1.12's GRPOTrainer; tests/grpo/test_trl_parity.py compares loss and gradients:

| TRL `loss_type`, and its divisor of the sum over tokens | loss | aggregation | advantage |
|---|---|---|---|
| `grpo`: the episode's tokens, then the episodes | clip | sequence | grpo |
| `dr_grpo`, `scale_rewards="none"`: episodes * `max_completion_length` | clip | constant | dr_grpo |
| `dapo`: tokens of all micro-batches and processes | clip | token | grpo |
| `grpo`, `importance_sampling_level="sequence"`: as grpo | gspo | sequence | grpo |
| `cispo`, `epsilon_high=5`: as dapo; our `clip_high` 4, `clip_low` 1 | cispo | token | grpo |

| TRL option | ours |
|---|---|
| `max_completion_length`, with `dr_grpo` | `constant_length` |
| `use_bias_correction_kl=True`, its default | `unbiased_kl`, by tokens: TRL takes the episode's ratio with GSPO |
| `vllm_importance_sampling_mode`, `..._clip_max` | `correction`, `correction_cap` |
| `..._clip_min`, by default none | 1 / `correction_cap` for masks, none for truncation |
| `mask_truncated_completions` | `--overlong mask`; TRL's grpo and dr_grpo still divide by such episodes, we never do |

Deliberate differences: TRL's dapo and cispo divide by an even share of all tokens that were generated, we divide by
the update's own tokens; the two agree unless one generation is split over several updates (`steps_per_generation` above
`gradient_accumulation_steps`). With GSPO, TRL spreads a token's correction over its episode; here it stays with its
token. TRL's `scale_rewards="batch"` divides by the deviation of the rewards, our reinforce++ by that of the rewards
minus their group's mean, as in its paper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forage.arguments import imported
from forage.errors import UserError
from forage.grpo.options import LossOptions
from forage.policy.packing import TokenBatch, Tokens

# Added to a deviation before dividing by it, as in TRL: rewards that differ by rounding alone must not become
# advantages of 1 and -1.
DEVIATION_FLOOR = 1e-4
LARGEST_LOG = 20.0  # log-ratios are clamped here: in fp32 exp overflows at 88, and its gradient 0 * inf would be nan


class Totals(NamedTuple):
    """Size of an update, over all its micro-batches and processes."""

    tokens: int
    """Tokens that the policy sampled, in the episodes that are kept."""
    episodes: int
    """Number of episodes that are kept."""


def count_totals(episodes: Sequence[Tokens], keep_N: Sequence[float] | Tensor | None = None) -> Totals:
    """Count what is kept. Example: masks (0, 1, 1), (0, 1) and (0, 1), the last one not kept: 3 tokens, 2 episodes.

    A sequence's first token does not count, as nothing precedes it to predict it from.
    """
    kept = [e for n, e in enumerate(episodes) if keep_N is None or keep_N[n] > 0]
    return Totals(sum(sum(e.mask[1:]) for e in kept), len(kept))


# Advantages


Numbers = Sequence[float] | NDArray[np.float64] | Tensor


def advantages(rewards_N: Numbers, groups_N: Collection[Hashable], method: str = "grpo") -> Tensor:
    """(N,) float64: how much better each episode is than the others of its group (of the same question).

    Rewards 0, 0, 1 and 1 in one group:

    grpo         -.866, -.866, .866, .866: minus the group's mean, divided by its standard deviation,
                 https://arxiv.org/abs/2402.03300
    dr_grpo      -.5, -.5, .5, .5: only minus the mean, since dividing by the deviation favours questions that are
                 nearly always or nearly never answered, https://arxiv.org/abs/2503.20783
    rloo         -.667, -.667, .667, .667: minus the mean of the others, https://arxiv.org/abs/2402.14740
    reinforce++  minus the group's mean, divided by the deviation of all such differences in the batch: the paper's
                 "baseline" variant, https://arxiv.org/abs/2501.03262. The plain form subtracts no group's mean, so an
                 easy question would look like a good episode
    best         0, 0, 1, 0: 1 for the first of the best and 0 for all others, so that a step imitates the best samples
                 and learns nothing from the rest: RAFT, https://arxiv.org/abs/2304.06767, or expert iteration
    none         0, 0, 0, 0: the rewards teach nothing, and are only measured
    maxrl        -1, -1, 1, 1: minus the mean, divided by it, for rewards of 0 or 1: the gradient of the log chance to
                 succeed, so that a rare success counts more, https://arxiv.org/abs/2602.02710
    module:name  a function of your own, as those of ADVANTAGES

    A group whose rewards are all equal, such as a group of one, gives exactly 0, whatever rounding does to its mean.
    """
    rewards_N = torch.as_tensor(rewards_N, dtype=torch.float64)
    group_N, equal_G = _by_group(rewards_N, groups_N)
    groups = Groups(group_N, _sum_by(torch.ones_like(rewards_N), group_N, len(equal_G)))
    differences_N = rewards_N - groups.means(rewards_N)
    differences_N = torch.where(equal_G[group_N], 0.0, differences_N)
    advantages_N = torch.as_tensor(advantage_named(method)(differences_N, groups))
    if advantages_N.shape != differences_N.shape:
        raise UserError(f"--advantage {method} must return a number for each of the {len(differences_N)} episodes")
    return torch.where(equal_G[group_N], 0.0, advantages_N)


class Groups(NamedTuple):
    """Which episodes belong together."""

    number_N: Tensor
    """Each episode's group, counted from 0."""
    sizes_G: Tensor

    def means(self, values_N: Tensor) -> Tensor:
        """(N,) at each episode, the mean of its group."""
        return (_sum_by(values_N, self.number_N, len(self.sizes_G)) / self.sizes_G)[self.number_N]

    def per_other(self, values_N: Tensor) -> Tensor:
        """(N,) at each episode, the sum over its group divided by the number of the others in it, at least 1."""
        others_G = (self.sizes_G - 1).clamp(min=1)
        return (_sum_by(values_N, self.number_N, len(self.sizes_G)) / others_G)[self.number_N]


def by_deviation(differences_N: Tensor, groups: Groups) -> Tensor:
    return differences_N / (groups.per_other(differences_N**2).sqrt() + DEVIATION_FLOOR)


def by_difference(differences_N: Tensor, groups: Groups) -> Tensor:
    return differences_N


def by_others(differences_N: Tensor, groups: Groups) -> Tensor:
    return differences_N * groups.per_other(torch.ones_like(differences_N))


def by_batch_deviation(differences_N: Tensor, groups: Groups) -> Tensor:
    deviation = (differences_N.square().sum() / max(len(differences_N) - 1, 1)).sqrt()
    return differences_N / (deviation + DEVIATION_FLOOR)


def first_best(differences_N: Tensor, groups: Groups) -> Tensor:
    chosen_N = torch.zeros_like(differences_N)
    for group in range(len(groups.sizes_G)):
        members = (groups.number_N == group).nonzero()[:, 0]
        chosen_N[members[differences_N[members].argmax()]] = 1.0
    return chosen_N


def by_success(differences_N: Tensor, groups: Groups) -> Tensor:
    lowest_G = torch.zeros_like(groups.sizes_G).scatter_reduce(0, groups.number_N, differences_N, "amin")
    means_N = -lowest_G[groups.number_N]
    rewards_N = differences_N + means_N
    if ((rewards_N * (1 - rewards_N)).abs() > 1e-6).any():
        raise UserError("--advantage maxrl takes rewards of 0 or 1 alone, such as --weights found=1")
    return differences_N / means_N


# Each turns the episodes' rewards minus their group's mean into advantages; what it makes of equal ones isn't used.
Advantage = Callable[[Tensor, Groups], Tensor]
ADVANTAGES: dict[str, Advantage] = {  # --advantage lists them in options.py
    "grpo": by_deviation,
    "dr_grpo": by_difference,
    "rloo": by_others,
    "reinforce++": by_batch_deviation,
    "best": first_best,
    "maxrl": by_success,
    "none": lambda differences_N, groups: torch.zeros_like(differences_N),
}


def advantage_named(name: str) -> Advantage:
    """One of ADVANTAGES, or the function that module:name names."""
    return ADVANTAGES.get(name) or imported("--advantage", name)


def widest(rewards_N: Numbers, groups_N: Collection[Hashable], most: int) -> Tensor:
    """(N,) bool: the `most` episodes of each group whose rewards vary most, https://arxiv.org/abs/2504.13818.

    They are always the lowest few and the highest few. Examples: 2 of 0, .1, .5, .9, 1 are 0 and 1; 3 of 0, 0, .1, .9
    are 0, 0 and .9.
    """
    rewards_N = torch.as_tensor(rewards_N, dtype=torch.float64)
    group_N, equal_G = _by_group(rewards_N, groups_N)
    chosen_N = torch.zeros(len(rewards_N), dtype=torch.bool)
    for group in range(len(equal_G)):
        members = (group_N == group).nonzero()[:, 0]
        members = members[rewards_N[members].argsort(stable=True)]
        count = min(most, len(members))
        choices = [torch.cat([members[:low], members[len(members) - (count - low) :]]) for low in range(count + 1)]
        chosen_N[max(choices, key=lambda choice: rewards_N[choice].var(correction=0).item())] = True
    return chosen_N


def overlong_penalty(lengths_N: Sequence[int] | Tensor, limit: int, margin: int) -> Tensor:
    """(N,) float64: DAPO's soft overlong penalty, https://arxiv.org/abs/2503.14476 equation 13.

    0 up to limit - margin tokens, then falling to -1 at the limit. Example: limit 100, margin 20: 80 tokens give 0, 90
    give -.5, 100 and more give -1.
    """
    lengths_N = torch.as_tensor(lengths_N, dtype=torch.float64)
    return ((limit - margin - lengths_N) / margin).clamp(-1.0, 0.0)


def _by_group(rewards_N: Tensor, groups_N: Collection[Hashable]) -> tuple[Tensor, Tensor]:
    """(each episode's group number, which groups have equal rewards only)."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(groups_N))}
    group_N = torch.tensor([numbers[name] for name in groups_N], dtype=torch.long)
    empty_G = torch.zeros(len(numbers), dtype=rewards_N.dtype)
    highest_G = empty_G.scatter_reduce(0, group_N, rewards_N, "amax", include_self=False)
    lowest_G = empty_G.scatter_reduce(0, group_N, rewards_N, "amin", include_self=False)
    return group_N, highest_G == lowest_G


# The loss


@dataclass(frozen=True)
class ScoredBatch:
    """A micro-batch and everything its loss needs. Shapes: N episodes of the update, B rows, T tokens."""

    batch: TokenBatch
    advantages_N: Tensor
    logprobs_BT: Tensor
    """Log-probabilities by the policy in training, with their gradient."""
    old_BT: Tensor
    """Log-probabilities by the same policy at the start of the step."""
    sampler_BT: Tensor
    """Log-probabilities by the engine that sampled the tokens."""
    reference_BT: Tensor | None = None
    """Log-probabilities by the policy that training began with, for the KL term."""
    entropy_BT: Tensor | None = None
    """Entropy of the policy in training; only reported."""
    credits_BT: Tensor | None = None
    """What is added to the advantage of a token's episode for this token alone."""
    teacher_BT: Tensor | None = None
    """Log-probabilities by a teacher."""
    divergence_BT: Tensor | None = None
    """KL divergence from a teacher's distribution to that of the policy in training, with its gradient."""


@dataclass(frozen=True)
class LossTerms:
    """The terms of the loss and of its statistics, token by token."""

    mask_BT: Tensor
    """True where a token counts."""
    weights_BT: Tensor
    """Each token's weight in the loss of the whole update; 0 where it does not count."""
    policy_terms: PolicyTerms
    """What the loss made of them, corrected for the sampler."""
    token_ratio_BT: Tensor
    """Trained policy over the one at the start of the step, whatever ratio the loss clips."""
    corrected_BT: Tensor
    """True where the sampler's correction met its cap."""
    mismatch_BT: Tensor
    """Log-probability by the trainer at the start of the step, minus the sampler's."""
    kl_BT: Tensor | None
    entropy_BT: Tensor | None
    teacher_BT: Tensor | None
    """Log-probability by a teacher, minus the trainer's at the start of the step."""
    divergence_BT: Tensor | None
    excess_BT: Tensor | None
    """Log-probability by the trainer at the start of the step, plus its distribution's entropy: 0 on average, if tokens
    are drawn from it."""


def loss_terms(scored: ScoredBatch, options: LossOptions, totals: Totals) -> LossTerms:
    """Every token's terms. `totals` are the whole update's, over all its micro-batches and processes."""
    device, count = scored.logprobs_BT.device, len(scored.advantages_N)
    batch = scored.batch.to(device)
    sequence_BT, mask_BT = batch.sequence_BT, batch.predicted_BT

    # 0 where no token counts, so that whatever value is there can't become 0 * inf in a sum or a gradient.
    logprobs_BT, old_BT = _where(mask_BT, scored.logprobs_BT), _where(mask_BT, scored.old_BT)
    mismatch_BT = old_BT - _where(mask_BT, scored.sampler_BT)
    lengths_N = _sum_by(mask_BT.float(), sequence_BT, count)
    advantages_BT = scored.advantages_N.to(device, torch.float32)[sequence_BT]
    if scored.credits_BT is not None:
        advantages_BT = advantages_BT + _where(mask_BT, scored.credits_BT)
    teacher_BT = None if scored.teacher_BT is None else _where(mask_BT, scored.teacher_BT) - old_BT
    if teacher_BT is not None:  # beside the advantages, whatever their scale
        cap = options.teacher_cap
        advantages_BT = advantages_BT + options.teacher_weight * teacher_BT.clamp(-cap, cap)

    tokens = LossTokens(
        logprobs_BT, old_BT, _exp(logprobs_BT - old_BT), advantages_BT, sequence_BT, lengths_N
    )  # fmt: skip
    policy = loss_named(options.loss)(tokens, options)
    if not isinstance(policy, PolicyTerms) or policy.terms_BT.shape != mask_BT.shape:
        raise UserError(f"--loss {options.loss} must return PolicyTerms with a term for each token, (rows, tokens)")
    correction_BT, corrected_BT = _correction(mismatch_BT, sequence_BT, count, options)
    reference_BT = scored.reference_BT
    return LossTerms(
        mask_BT,
        weights_BT=_token_weights(mask_BT, lengths_N[sequence_BT], options, totals),
        policy_terms=policy._replace(terms_BT=policy.terms_BT * correction_BT),
        token_ratio_BT=tokens.ratio_BT,
        corrected_BT=corrected_BT,
        mismatch_BT=mismatch_BT,
        kl_BT=None if reference_BT is None else _k3(_where(mask_BT, reference_BT) - logprobs_BT),
        entropy_BT=scored.entropy_BT,
        teacher_BT=teacher_BT,
        divergence_BT=scored.divergence_BT,
        excess_BT=None if scored.entropy_BT is None else old_BT + scored.entropy_BT,
    )


class LossTokens(NamedTuple):
    """The tokens of a micro-batch, as a loss sees them; all is 0 where no token counts."""

    logprobs_BT: Tensor
    """Log-probabilities by the policy in training, with their gradient."""
    old_BT: Tensor
    """The same at the start of the step."""
    ratio_BT: Tensor
    """The first over the second, as probabilities."""
    advantages_BT: Tensor
    sequence_BT: Tensor
    """Each token's episode (of an agent that rewrote its history: segment of it), counted from 0."""
    lengths_N: Tensor
    """Sampled tokens of each episode."""

    def episode_ratio_BT(self) -> Tensor:
        """At every token, its episode's ratio: the geometric mean of the tokens', https://arxiv.org/abs/2507.18071.

        The value is the episode's, the gradient the token's own (the paper's GSPO-token). Summed over an episode, they
        give the gradient of the ratio times the episode's length; but a weight that varies by token stays with its
        token.
        """
        logs_BT = self.logprobs_BT
        with torch.no_grad():
            sums_N = _sum_by(logs_BT - self.old_BT, self.sequence_BT, len(self.lengths_N))
        means_N = sums_N / self.lengths_N.clamp(min=1)
        return _exp(means_N)[self.sequence_BT] * torch.exp(logs_BT - logs_BT.detach())


class PolicyTerms(NamedTuple):
    """What a loss makes of each token."""

    terms_BT: Tensor
    """Its term of the loss."""
    ratio_BT: Tensor | None = None
    """The ratio that was clipped; this and the next are for statistics alone, and None where a loss has no ratio."""
    clipped_low_BT: Tensor | None = None
    """True where the lower bound of the ratio took effect."""
    clipped_high_BT: Tensor | None = None


def clip(tokens: LossTokens, options: LossOptions) -> PolicyTerms:
    return _clipped(tokens.ratio_BT, tokens.advantages_BT, options)


def gspo(tokens: LossTokens, options: LossOptions) -> PolicyTerms:
    return _clipped(tokens.episode_ratio_BT(), tokens.advantages_BT, options)


def cispo(tokens: LossTokens, options: LossOptions) -> PolicyTerms:
    low, high, ratio_BT = 1 - options.clip_low, 1 + options.clip_high, tokens.ratio_BT
    terms_BT = -ratio_BT.clamp(low, high).detach() * tokens.advantages_BT * tokens.logprobs_BT
    return PolicyTerms(terms_BT, ratio_BT, ratio_BT < low, ratio_BT > high)


def dppo(tokens: LossTokens, options: LossOptions) -> PolicyTerms:
    moved_BT = (tokens.logprobs_BT.exp() - tokens.old_BT.exp()).detach()
    low_BT = (moved_BT < -options.clip_low) & (tokens.advantages_BT < 0)
    high_BT = (moved_BT > options.clip_high) & (tokens.advantages_BT > 0)
    terms_BT = -(tokens.ratio_BT * tokens.advantages_BT).masked_fill(low_BT | high_BT, 0)
    return PolicyTerms(terms_BT, tokens.ratio_BT, low_BT, high_BT)


Loss = Callable[[LossTokens, LossOptions], PolicyTerms]
LOSSES: dict[str, Loss] = {"clip": clip, "gspo": gspo, "cispo": cispo, "dppo": dppo}  # --loss lists them in options.py


def loss_named(name: str) -> Loss:
    """One of LOSSES, or the function that module:name names."""
    return LOSSES.get(name) or imported("--loss", name)


def _clipped(ratio_BT: Tensor, advantages_BT: Tensor, options: LossOptions) -> PolicyTerms:
    """The smaller of the clipped and the unclipped gain: clipping may withhold a gain, never a loss."""
    low, high = 1 - options.clip_low, 1 + options.clip_high
    terms_BT = -torch.minimum(ratio_BT * advantages_BT, ratio_BT.clamp(low, high) * advantages_BT)
    return PolicyTerms(
        terms_BT, ratio_BT, (ratio_BT < low) & (advantages_BT < 0), (ratio_BT > high) & (advantages_BT > 0)
    )


def policy_loss(terms: LossTerms, options: LossOptions) -> Tensor:
    """A micro-batch's share of the update's loss, KL term included (the statistic policy_loss is without it).

    Shares add up to the loss of one batch over all micro-batches and processes: gradients are added, not averaged.
    Example: one episode of 2 tokens with advantage 1, all log-probabilities equal: -1, and a gradient of -1/2 at each.
    """
    terms_BT = terms.policy_terms.terms_BT
    if options.beta:
        if terms.kl_BT is None:
            raise ValueError("beta above 0 needs reference_BT")
        terms_BT = terms_BT + options.beta * terms.kl_BT * (terms.token_ratio_BT if options.unbiased_kl else 1)
    if terms.divergence_BT is not None:
        terms_BT = terms_BT + options.teacher_weight * _where(terms.mask_BT, terms.divergence_BT)
    return (terms_BT * terms.weights_BT).sum()


@torch.no_grad()
def loss_sums(terms: LossTerms) -> dict[str, Tensor]:
    """A micro-batch's sums; `add_stats` adds them up and `summary` turns them into means."""
    mask_BT, policy = terms.mask_BT, terms.policy_terms
    ratio_BT = terms.token_ratio_BT if policy.ratio_BT is None else policy.ratio_BT
    values = {
        "clip_low": policy.clipped_low_BT, "clip_high": policy.clipped_high_BT, "ratio": ratio_BT,
        "corrected": terms.corrected_BT, "kl": terms.kl_BT, "entropy": terms.entropy_BT,
        "mismatch_kl": _k3(terms.mismatch_BT), "mismatch_abs": terms.mismatch_BT.abs(), "tokens": mask_BT,
        "teacher_kl": terms.divergence_BT if terms.teacher_BT is None else _k3(terms.teacher_BT),
        "excess": terms.excess_BT, "excess_squares": None if terms.excess_BT is None else terms.excess_BT.square(),
    }  # fmt: skip
    sums = {name: _where(mask_BT, values_BT).sum() for name, values_BT in values.items() if values_BT is not None}
    return sums | {
        "policy_loss": (terms.policy_terms.terms_BT * terms.weights_BT).sum(),
        "ratio_max": ratio_BT.masked_fill(~mask_BT, -torch.inf).amax(),
        "ratio_min": ratio_BT.masked_fill(~mask_BT, torch.inf).amin(),
    }


def add_stats(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Add up the sums of several micro-batches; for names ending in _max or _min, take the maximum or minimum."""
    added: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part.items():
            if name not in added:
                added[name] = value
            elif name.endswith("_max"):
                added[name] = torch.maximum(added[name], value)
            elif name.endswith("_min"):
                added[name] = torch.minimum(added[name], value)
            else:
                added[name] = added[name] + value
    return added


def summary(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """An update's figures: means over its tokens, from its sums over all micro-batches and processes.

    policy_loss       loss without the KL term
    kl, entropy       where a reference and an entropy were given
    clip_low_share,   share of tokens whose ratio was clipped: with clip and gspo, tokens that lost their gradient;
    clip_high_share   with cispo, tokens whose weight changed
    ratio_mean,       trained policy over the one at the start of the step; with gspo of the whole episode
    ratio_max, ratio_min
    mismatch_kl       KL of the engine's policy to the trainer's at the start of the step (k3, on the engine's tokens)
    mismatch_mean_abs mean distance of their log-probabilities
    teacher_kl        KL of the policy at the start of the step to a teacher (k3), or a teacher's to the policy (exact)
    corrected_share   share of tokens whose correction met the cap
    excess            by how many nats the tokens are likelier than draws from the policy at the start of the step, and
    excess_error      the standard error: where a sampler takes the likeliest tokens alone, several errors above 0
    tokens            how many were kept

    All are 0 where there are no tokens.
    """
    values = dict(zip(sums, torch.stack([value.double() for value in sums.values()]).tolist(), strict=True))
    tokens = values["tokens"]
    means = {
        "kl": "kl", "entropy": "entropy", "clip_low_share": "clip_low", "clip_high_share": "clip_high",
        "ratio_mean": "ratio", "mismatch_kl": "mismatch_kl", "mismatch_mean_abs": "mismatch_abs",
        "corrected_share": "corrected", "teacher_kl": "teacher_kl",
    }  # fmt: skip
    result = {name: values[total] / max(tokens, 1.0) for name, total in means.items() if total in values}
    result |= {name: values[name] if tokens else 0.0 for name in ("ratio_max", "ratio_min")}
    if "excess" in values:
        result |= {"excess": values["excess"] / max(tokens, 1.0)}
        result |= {"excess_error": values["excess_squares"] ** 0.5 / max(tokens, 1.0)}
    return result | {name: values[name] for name in ("policy_loss", "tokens")}


def _token_weights(mask_BT: Tensor, lengths_BT: Tensor, options: LossOptions, totals: Totals) -> Tensor:
    """Each token's weight in the update's loss. `lengths_BT`: number of sampled tokens in the token's episode."""
    if options.aggregation == "token":
        return mask_BT.float() / max(totals.tokens, 1)
    if options.aggregation == "sequence":
        return mask_BT.float() / lengths_BT.clamp(min=1) / max(totals.episodes, 1)
    return mask_BT.float() / (max(totals.episodes, 1) * options.constant_length)


def _correction(log_BT: Tensor, sequence_BT: Tensor, count: int, options: LossOptions) -> tuple[Tensor, Tensor]:
    """Weights that correct for an engine whose probabilities differ from the trainer's, and where they met the cap.

    `log_BT`: log-probability by the trainer minus that by the engine. Truncated: TIS,
    https://fengyao.notion.site/off-policy-rl. Masked: IcePop, https://arxiv.org/abs/2510.18855; for whole episodes MIS,
    https://arxiv.org/abs/2510.26788.
    """
    with torch.no_grad():
        if options.correction == "none":
            return torch.ones_like(log_BT), torch.zeros_like(log_BT)
        if options.correction.startswith("sequence"):
            log_BT = _sum_by(log_BT, sequence_BT, count)[sequence_BT]
        weights_BT, cap = _exp(log_BT), options.correction_cap
        if options.correction.endswith("truncate"):
            return weights_BT.clamp(max=cap), weights_BT > cap
        out_BT = (weights_BT > cap) | (weights_BT < 1 / cap)
        return weights_BT.masked_fill(out_BT, 0.0), out_BT


def _k3(log_BT: Tensor) -> Tensor:
    """Estimate KL(p, q) on tokens of p from log q - log p; never below 0, http://joschu.net/blog/kl-approx.html.

    Example: log 2 gives 2 - log 2 - 1 = .307.
    """
    return _exp(log_BT) - log_BT - 1


def _exp(log: Tensor) -> Tensor:
    return log.clamp(-LARGEST_LOG, LARGEST_LOG).exp()


def _where(mask_BT: Tensor, values_BT: Tensor) -> Tensor:
    """The values as fp32, and 0 outside the mask."""
    return torch.where(mask_BT, values_BT.to(mask_BT.device, torch.float32), 0.0)


def _sum_by(values: Tensor, numbers: Tensor, count: int) -> Tensor:
    """(count,): sums of the values that have the same number."""
    sums = torch.zeros(count, dtype=values.dtype, device=values.device)
    return sums.index_add(0, numbers.flatten(), values.flatten())
