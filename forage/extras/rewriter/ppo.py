"""PPO: its inputs and outputs, its formulas, and a training loop of our own beside TRL's.

    for each batch: sample -> log-probabilities, values -> rewards -> GAE -> a few epochs on the clipped loss

With --algorithm grpo, the other rewrites of a question take the value model's place; all else is the same.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347, and 2015, https://arxiv.org/abs/1506.02438. The formulas give
the same values as TRL's (tests/extras/rewriter/test_trl_backend.py compares updates of both). Shapes: B episodes, T
tokens of prompt and response, R tokens of the response, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from forage.extras.rewriter.actors import Actors, model_inputs
from forage.extras.rewriter.data import Row
from forage.extras.rewriter.options import PPOOptions
from forage.grpo.losses import add_stats, advantages
from forage.optimizer import MAX_NORM, adamw

Score = Callable[[Sequence[Row], Sequence[Sequence[int]]], list[float]]
"""Gives a reward for each row's response, whose tokens include the eos."""
AfterUpdate = Callable[[dict[str, float]], None]
"""Called with an update's figures, under TRL's names, once the weights have changed."""


@dataclass(frozen=True)
class PromptBatch:
    """The prompts of an update."""

    rows: list[Row]
    ids_BT: Tensor
    """Prompt tokens, padded on the left."""


@dataclass(frozen=True)
class Training:
    """What both loops, ours and TRL's, need for an update."""

    actors: Actors
    optimizer: torch.optim.Optimizer
    options: PPOOptions
    score: Score
    after_update: AfterUpdate


def make_optimizer(actors: Actors, learning_rate: float, norms: list[float]) -> torch.optim.Optimizer:
    """AdamW that clips gradients before each step, as TRL does not; the norm before clipping is added to `norms`."""
    optimizer = adamw(actors)
    [group] = optimizer.param_groups
    group["lr"] = learning_rate

    def clip(*_: object) -> None:
        norms.append(float(torch.nn.utils.clip_grad_norm_(group["params"], MAX_NORM)))

    optimizer.register_step_pre_hook(clip)
    return optimizer


# Formulas


def logprobs_of(logits_BRV: Tensor, tokens_BR: Tensor) -> Tensor:
    """(B, R) log-probabilities of the tokens."""
    return logits_BRV.float().log_softmax(-1).gather(-1, tokens_BR.unsqueeze(-1)).squeeze(-1)


def entropy_of(logits_BRV: Tensor) -> Tensor:
    """(B, R). Example: two equal logits give log 2 = .693."""
    logs_BRV = logits_BRV.float().log_softmax(-1)
    return -(logs_BRV.exp() * logs_BRV).sum(-1)


def last_places(tokens_BR: Tensor, eos_id: int) -> Tensor:
    """(B,) index of each response's last token: its first eos, or the end. Example, eos 0: [[5, 0, 0]] gives [1]."""
    ended_BR = tokens_BR == eos_id
    end = torch.full_like(tokens_BR[:, 0], tokens_BR.shape[1] - 1)
    return torch.where(ended_BR.any(1), ended_BR.int().argmax(1), end)


def token_rewards(kl_BR: Tensor, scores_B: Tensor, last_B: Tensor, kl_coef: float) -> Tensor:
    """(B, R): each token's KL times -kl_coef, plus the response's score at the position after its last token.

    The value at that position is that of the finished response. A response that fills its row has no such position; its
    score is added at the last token. Example, coefficient .1, last 0: KL [2, 0, 0] and score 1 give [-.2, 1, 0].
    """
    rewards_BR = -kl_coef * kl_BR
    places_B = torch.clamp(last_B + 1, max=kl_BR.shape[1] - 1)
    return rewards_BR.scatter_add(1, places_B.unsqueeze(1), scores_B.unsqueeze(1).to(rewards_BR.dtype))


def gae(rewards_BR: Tensor, values_BR: Tensor, gamma: float, lam: float) -> Tensor:
    """(B, R) advantages: A_t = d_t + gamma lam A_(t+1), with d_t = r_t + gamma V_(t+1) - V_t, and V = 0 after the end.

    Example, gamma 1, lam .5: rewards [0, 1], values [.5, .25] give d = [-.25, .75] and A = [.125, .75].
    """
    advantages_BR = torch.zeros_like(rewards_BR)
    next_advantage_B = next_value_B = torch.zeros_like(rewards_BR[:, 0])
    for place in reversed(range(rewards_BR.shape[1])):
        delta_B = rewards_BR[:, place] + gamma * next_value_B - values_BR[:, place]
        next_advantage_B = delta_B + gamma * lam * next_advantage_B
        next_value_B = values_BR[:, place]
        advantages_BR[:, place] = next_advantage_B
    return advantages_BR


def over_others(scores_B: Tensor, penalty_B: Tensor, size: int) -> Tensor:
    """(B,) GRPO's advantages of scores plus penalties, in groups of `size`; 0 where the scores of a group are equal.

    Example, groups of two: scores 0, 1, 1, 1 and penalties 0, 0, 0, -.1 give -.707, .707, 0, 0.
    """
    scores_GS = scores_B.view(-1, size)
    equal_B = (scores_GS == scores_GS[:, :1]).all(1).repeat_interleave(size)
    groups = [place // size for place in range(len(scores_B))]
    return advantages((scores_B + penalty_B).masked_fill(equal_B, 0.0), groups).float()


def masked_mean(values_BR: Tensor, mask_BR: Tensor, count: Tensor | None = None) -> Tensor:
    """Over the mask; of a part of a batch, its share of the batch's mean, whose mask has `count` ones."""
    return (values_BR * mask_BR).sum() / (mask_BR.sum() if count is None else count)


def whitened(values_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """Mean 0 and sample standard deviation 1 over the mask, 0 elsewhere. Example: [1, 3] gives [-.707, .707]."""
    kept_N = values_BR[mask_BR]
    return ((values_BR - kept_N.mean()) * torch.rsqrt(kept_N.var() + 1e-8)).masked_fill(~mask_BR, 0.0)


@dataclass(frozen=True)
class TrainingBatch:
    """Sampled episodes with what the loss needs."""

    sequences_BT: Tensor
    responses_BR: Tensor
    logprobs_BR: Tensor
    """At sampling time."""
    values_BR: Tensor
    """At sampling time."""
    advantages_BR: Tensor
    returns_BR: Tensor
    mask_BR: Tensor
    """1: a token of the response, including its eos."""
    value_mask_BR: Tensor
    """1: the same, plus the position after the last token."""

    def select(self, indices: Tensor | slice) -> TrainingBatch:
        return TrainingBatch(*(getattr(self, field.name)[indices] for field in fields(self)))


def ppo_loss(
    logprobs_BR: Tensor,
    values_BR: Tensor,
    batch: TrainingBatch,
    options: PPOOptions,
    whole: TrainingBatch | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate plus value_coef times half the squared value error, clipped the same way; and its figures.

    Where `batch` is a micro-batch of a `whole`, these are its shares of the whole's: they add up to them, however it is
    cut. (TRL takes the mean of its micro-batches' means, where a token of a short response weighs more.)

    These have TRL's names: approxkl is half the mean squared difference from the log-probabilities at sampling time, a
    clipfrac the share of tokens, or of values, whose loss is clipped.

    Each loss is the larger (more pessimistic) of the unclipped and the clipped one. Example for one token: old
    log-probability 0, new log 1.5, advantage 1, clip range .2 gives a policy loss of -1.2.
    """
    difference_BR = (logprobs_BR - batch.logprobs_BR).masked_fill(~batch.mask_BR, 0.0)
    ratio_BR = difference_BR.exp()
    clipped_ratio_BR = ratio_BR.clamp(1 - options.clip_range, 1 + options.clip_range)
    loss_BR = -batch.advantages_BR * ratio_BR
    clipped_loss_BR = -batch.advantages_BR * clipped_ratio_BR

    tokens, places = (whole or batch).mask_BR.sum(), (whole or batch).value_mask_BR.sum()
    reach = options.value_clip_range
    clipped_values_BR = torch.clamp(values_BR, batch.values_BR - reach, batch.values_BR + reach)
    error_BR = (values_BR - batch.returns_BR) ** 2
    clipped_error_BR = (clipped_values_BR - batch.returns_BR) ** 2

    policy = masked_mean(torch.maximum(loss_BR, clipped_loss_BR), batch.mask_BR, tokens)
    value = 0.5 * masked_mean(torch.maximum(error_BR, clipped_error_BR), batch.value_mask_BR, places)
    return policy + options.value_coef * value, {
        "policy/approxkl_avg": 0.5 * masked_mean(difference_BR.detach() ** 2, batch.mask_BR, tokens),
        "policy/clipfrac_avg": masked_mean((clipped_loss_BR > loss_BR).float(), batch.mask_BR, tokens),
        "loss/policy_avg": policy.detach(),
        "loss/value_avg": value.detach(),
        "val/clipfrac_avg": masked_mean((clipped_error_BR > error_BR).float(), batch.value_mask_BR, places),
        "val/ratio": masked_mean(ratio_BR.detach(), batch.mask_BR, tokens),
    }


# The loop


def train_own(training: Training, batches: Iterable[PromptBatch], updates: int) -> None:
    """One update on each of the next `updates` batches."""
    for prompts in islice(batches, updates):
        batch, figures = rollout(training.actors, prompts, training.score, training.options)
        training.after_update(figures | learn(training.actors, training.optimizer, batch, training.options))


@torch.no_grad()
def rollout(
    actors: Actors, prompts: PromptBatch, score: Score, options: PPOOptions
) -> tuple[TrainingBatch, dict[str, float]]:
    """Sample responses, score them, and compute advantages; and their figures, under TRL's names."""
    policy = actors.policy
    ids_BT = prompts.ids_BT.to(policy.lm.device)
    responses_BR = policy.sample(ids_BT)
    sequences_BT = torch.cat((ids_BT, responses_BR), 1)
    logprobs_BR, reference_BR, values_BR = logprobs_and_values(actors, sequences_BT, responses_BR, options.micro_batch)
    last_B = last_places(responses_BR, policy.eos_id)
    sampled = [tokens[: last + 1] for tokens, last in zip(responses_BR.tolist(), last_B.tolist(), strict=True)]
    scores_B = torch.tensor(score(prompts.rows, sampled), device=responses_BR.device)
    positions_R = torch.arange(responses_BR.shape[1], device=last_B.device)
    mask_BR, value_mask_BR = positions_R <= last_B.unsqueeze(1), positions_R <= last_B.unsqueeze(1) + 1
    kl_BR = (logprobs_BR - reference_BR).masked_fill(~mask_BR, 0.0)
    values_BR = values_BR.masked_fill(~value_mask_BR, 0.0)

    rewards_BR = token_rewards(kl_BR, scores_B, last_B, options.kl_coef)
    raw_advantages_BR = gae(rewards_BR, values_BR, options.gamma, options.gae_lambda)
    returns_BR = raw_advantages_BR + values_BR
    # If all scores are equal there is nothing to learn: whitening (TRL always does it) would amplify the noise of KL
    # and values to the size of a real difference.
    equal = bool((scores_B == scores_B[0]).all())
    advantages_BR = raw_advantages_BR * mask_BR if equal else whitened(raw_advantages_BR, mask_BR)
    penalty_B = -options.kl_coef * kl_BR.sum(1)
    if options.algorithm == "grpo":
        advantages_BR = over_others(scores_B, penalty_B, options.num_rollouts).unsqueeze(1) * mask_BR
        returns_BR = values_BR  # so that the value model learns nothing
    batch = TrainingBatch(
        sequences_BT, responses_BR, logprobs_BR, values_BR, advantages_BR, returns_BR, mask_BR, value_mask_BR
    )
    return batch, {
        "objective/kl": float(kl_BR.sum(1).mean()),
        "objective/entropy": float((-logprobs_BR * mask_BR).sum(1).mean()),
        "objective/non_score_reward": float(penalty_B.mean()),
        "objective/rlhf_reward": float(penalty_B.mean() + scores_B.mean()),
        "objective/scores": float(scores_B.mean()),
        "val/num_eos_tokens": float((responses_BR == policy.eos_id).any(1).sum()),
    }


def logprobs_and_values(
    actors: Actors, sequences_BT: Tensor, responses_BR: Tensor, micro_batch: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, R) log-probabilities of policy and reference, and values, a micro-batch at a time."""
    count, logits, values, reference = responses_BR.shape[1], [], [], []
    for part_BT in torch.split(sequences_BT, micro_batch):
        part_logits_BRV, part_values_BR = logits_and_values(actors, part_BT, count)
        logits.append(part_logits_BRV)
        values.append(part_values_BR)
        reference.append(logprobs_of(actors.reference.response_logits(part_BT, count), part_BT[:, -count:]))
    return logprobs_of(torch.cat(logits), responses_BR), torch.cat(reference), torch.cat(values)


def learn(
    actors: Actors, optimizer: torch.optim.Optimizer, batch: TrainingBatch, options: PPOOptions
) -> dict[str, float]:
    """A few epochs over the batch, each in a new order."""
    size, rows = len(batch.sequences_BT), list[dict[str, Tensor]]()
    for _ in range(options.ppo_epochs):
        order, parts = torch.from_numpy(np.random.permutation(size)), []  # from numpy, as in TRL
        for indices in torch.split(order, options.micro_batch):
            part = batch.select(indices)
            logits_BRV, values_BR = logits_and_values(actors, part.sequences_BT, part.responses_BR.shape[1])
            logprobs_BR = logprobs_of(logits_BRV, part.responses_BR)
            loss, figures = ppo_loss(logprobs_BR, values_BR.masked_fill(~part.value_mask_BR, 0.0), part, options, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                entropy = masked_mean(entropy_of(logits_BRV), part.mask_BR, batch.mask_BR.sum())
            parts.append(figures | {"policy/entropy_avg": entropy})
        rows.append(add_stats(parts))
        optimizer.step()
        optimizer.zero_grad()
    means = {name: float(np.mean([float(row[name]) for row in rows])) for name in rows[0]}
    ratios = [float(row["val/ratio"]) for row in rows]
    return means | {"val/ratio_var": float(np.var(ratios, ddof=len(ratios) > 1))}


def logits_and_values(actors: Actors, sequences_BT: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(B, R, V) logits of the response's tokens and (B, R) values before each; two passes if values have a model."""
    policy, value_model = actors.policy, actors.value_model
    logits_BRV, output = policy.response_logits(sequences_BT, count, output_hidden_states=not value_model.own)
    if value_model.own:
        hidden_BTD = value_model(**model_inputs(sequences_BT, policy.pad_id)).hidden_states[-1]
    else:
        hidden_BTD = output.hidden_states[-1].detach().float()
    return logits_BRV, value_model.score(hidden_BTD[:, -count - 1 : -1]).squeeze(-1)
