"""PPO: what an update is given and gives, its formulas, and a loop of our own beside TRL's.

    for each batch: sample -> log-probabilities, values -> rewards -> GAE -> a few epochs on the clipped loss

Schulman et al. 2017, https://arxiv.org/abs/1707.06347, and 2015, https://arxiv.org/abs/1506.02438. The formulas are
TRL's, by value (tests/test_trl_ppo.py holds one update of each against the other). Shapes: B episodes, T tokens of
prompt and response, R of the response, V of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from forage.rewriter.actors import Actors, attended
from forage.rewriter.options import PPOOptions
from forage.rewriter.rewrites import Row

Score = Callable[[Sequence[Row], Sequence[Sequence[int]]], list[float]]
"""The rewards of responses, each a row's: tokens as sampled, up to and with eos."""
Done = Callable[[dict[str, float]], None]
"""Told an update's figures, under TRL's names, when its weights are changed."""


@dataclass(frozen=True)
class Batch:
    """The prompts of an update."""

    rows: list[Row]
    ids_BT: Tensor
    """Their tokens, padded on the left."""


def make_optimizer(actors: Actors, options: PPOOptions, norms: list[float]) -> torch.optim.Optimizer:
    """AdamW with gradients cut before each step, whoever takes it (TRL's loop cuts none); `norms` grows by what was."""
    weights = [weight for weight in actors.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=options.learning_rate, weight_decay=0.0)

    def cut(*_: object) -> None:
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, options.max_norm or float("inf"))))

    optimizer.register_step_pre_hook(cut)
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
    """(B,) place of each response's last token: its first eos, or the end. Example, eos 0: [[5, 0, 0]] gives [1]."""
    ended_BR = tokens_BR == eos_id
    end = torch.full_like(tokens_BR[:, 0], tokens_BR.shape[1] - 1)
    return torch.where(ended_BR.any(1), ended_BR.int().argmax(1), end)


def token_rewards(kl_BR: Tensor, scores_B: Tensor, last_B: Tensor, kl_coef: float) -> Tensor:
    """(B, R): each token's KL, times -kl_coef, and the score of the whole at the place after the last token.

    There the value is that of the finished response. A response that fills its row has no such place: then the score
    stands at the last token. Example, coefficient .1, last 0: KL [2, 0, 0] and score 1 give [-.2, 1, 0].
    """
    rewards_BR = -kl_coef * kl_BR
    places_B = torch.clamp(last_B + 1, max=kl_BR.shape[1] - 1)
    return rewards_BR.scatter_add(1, places_B.unsqueeze(1), scores_B.unsqueeze(1).to(rewards_BR.dtype))


def gae(rewards_BR: Tensor, values_BR: Tensor, gamma: float, lam: float) -> Tensor:
    """(B, R) advantages: A_t = d_t + gamma lam A_(t+1), of d_t = r_t + gamma V_(t+1) - V_t, and V = 0 after the end.

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


def masked_mean(values_BR: Tensor, mask_BR: Tensor) -> Tensor:
    return (values_BR * mask_BR).sum() / mask_BR.sum()


def whitened(values_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """Mean 0 and deviation 1 (as of a sample) over the mask, 0 elsewhere. Example: [1, 3] gives [-.707, .707]."""
    mean, count = masked_mean(values_BR, mask_BR), mask_BR.sum()
    variance = masked_mean((values_BR - mean) ** 2, mask_BR) * count / (count - 1)
    return ((values_BR - mean) * torch.rsqrt(variance + 1e-8)).masked_fill(~mask_BR, 0.0)


@dataclass(frozen=True)
class Loss:
    """A pass's loss and what it is made of."""

    total: Tensor
    policy: Tensor
    value: Tensor
    ratio: Tensor
    clipped: Tensor
    """Share of tokens whose loss the clip range cuts."""
    value_clipped: Tensor
    kl: Tensor
    """Half the mean squared difference to the log-probabilities at sampling."""


def ppo_loss(logprobs_BR: Tensor, values_BR: Tensor, lesson: Lesson, options: PPOOptions) -> Loss:
    """Clipped surrogate plus value_coef times half the squared error of the values, clipped alike, the worse of both.

    Example of one token: old log-probability 0, new log 1.5, advantage 1, clip range .2 gives a policy loss of -1.2.
    """
    difference_BR = (logprobs_BR - lesson.logprobs_BR).masked_fill(~lesson.mask_BR, 0.0)
    ratio_BR = difference_BR.exp()
    low, high = 1 - options.clip_range, 1 + options.clip_range
    free_BR = -lesson.advantages_BR * ratio_BR
    cut_BR = -lesson.advantages_BR * ratio_BR.clamp(low, high)
    near = options.value_clip_range
    near_BR = torch.clamp(values_BR, lesson.values_BR - near, lesson.values_BR + near)
    free_error_BR, cut_error_BR = (values_BR - lesson.returns_BR) ** 2, (near_BR - lesson.returns_BR) ** 2
    policy = masked_mean(torch.maximum(free_BR, cut_BR), lesson.mask_BR)
    value = 0.5 * masked_mean(torch.maximum(free_error_BR, cut_error_BR), lesson.value_mask_BR)
    return Loss(
        policy + options.value_coef * value, policy.detach(), value.detach(),
        masked_mean(ratio_BR.detach(), lesson.mask_BR), masked_mean((cut_BR > free_BR).float(), lesson.mask_BR),
        masked_mean((cut_error_BR > free_error_BR).float(), lesson.value_mask_BR),
        0.5 * masked_mean(difference_BR.detach() ** 2, lesson.mask_BR),
    )  # fmt: skip


# The loop


@dataclass(frozen=True)
class Lesson:
    """Episodes, and what is learnt from them."""

    sequences_BT: Tensor
    responses_BR: Tensor
    logprobs_BR: Tensor
    """At sampling."""
    values_BR: Tensor
    """At sampling."""
    advantages_BR: Tensor
    returns_BR: Tensor
    mask_BR: Tensor
    """1: a token of the response, its eos included."""
    value_mask_BR: Tensor
    """1: the same and the place after the last token."""

    def part(self, places: Tensor) -> Lesson:
        return Lesson(*(getattr(self, name)[places] for name in self.__dataclass_fields__))


def train_own(
    actors: Actors, optimizer: torch.optim.Optimizer, batches: Iterable[Batch], updates: int, score: Score,
    options: PPOOptions, done: Done,
) -> None:  # fmt: skip
    """So many updates, each on the next batch."""
    for _, batch in zip(range(updates), batches, strict=False):
        lesson, figures = rollout(actors, batch, score, options)
        done(figures | learn(actors, optimizer, lesson, options))


@torch.no_grad()
def rollout(actors: Actors, batch: Batch, score: Score, options: PPOOptions) -> tuple[Lesson, dict[str, float]]:
    """Sample, score, and make advantages of the scores."""
    policy = actors.policy
    ids_BT = batch.ids_BT.to(policy.lm.device)
    responses_BR = policy.sample(ids_BT)
    sequences_BT = torch.cat((ids_BT, responses_BR), 1)
    count = responses_BR.shape[1]
    passes = [see(actors, part, count) for part in torch.split(sequences_BT, options.micro_batch)]
    logprobs_BR = logprobs_of(torch.cat([logits for logits, _ in passes]), responses_BR)
    reference = [
        logprobs_of(actors.reference.response_logits(part, count), part[:, -count:])
        for part in torch.split(sequences_BT, options.micro_batch)
    ]
    last_B = last_places(responses_BR, policy.eos_id)
    places_R = torch.arange(count, device=last_B.device)
    mask_BR, value_mask_BR = places_R <= last_B.unsqueeze(1), places_R <= last_B.unsqueeze(1) + 1
    said = [tokens[: last + 1] for tokens, last in zip(responses_BR.tolist(), last_B.tolist(), strict=True)]
    scores_B = torch.tensor(score(batch.rows, said), device=last_B.device)
    kl_BR = (logprobs_BR - torch.cat(reference)).masked_fill(~mask_BR, 0.0)
    values_BR = torch.cat([values for _, values in passes]).masked_fill(~value_mask_BR, 0.0)
    rewards_BR = token_rewards(kl_BR, scores_B, last_B, options.kl_coef)
    raw_BR = gae(rewards_BR, values_BR, options.gamma, options.gae_lambda)
    # Where all did equally well there is nothing to learn: whitening (TRL's always does) would blow up the KL's
    # and the values' noise to the size of a lesson.
    flat = bool((scores_B == scores_B[0]).all())
    advantages_BR = (raw_BR * mask_BR) if flat else whitened(raw_BR, mask_BR)
    lesson = Lesson(
        sequences_BT, responses_BR, logprobs_BR, values_BR, advantages_BR, raw_BR + values_BR, mask_BR, value_mask_BR
    )
    penalty_B = -options.kl_coef * kl_BR.sum(1)
    return lesson, {
        "objective/kl": float(kl_BR.sum(1).mean()),
        "objective/entropy": float((-logprobs_BR * mask_BR).sum(1).mean()),
        "objective/non_score_reward": float(penalty_B.mean()),
        "objective/rlhf_reward": float(penalty_B.mean() + scores_B.mean()),
        "objective/scores": float(scores_B.mean()),
        "val/num_eos_tokens": float((responses_BR == policy.eos_id).any(1).sum()),
    }


def learn(actors: Actors, optimizer: torch.optim.Optimizer, lesson: Lesson, options: PPOOptions) -> dict[str, float]:
    """A few epochs over the lesson, each in an order of its own."""
    size, rows = len(lesson.sequences_BT), []
    for _ in range(options.ppo_epochs):
        order = torch.from_numpy(np.random.permutation(size))  # numpy's, as TRL draws it
        for places in torch.split(order, options.micro_batch):
            part = lesson.part(places)
            logits_BRV, values_BR = see(actors, part.sequences_BT, part.responses_BR.shape[1])
            loss = ppo_loss(
                logprobs_of(logits_BRV, part.responses_BR), values_BR.masked_fill(~part.value_mask_BR, 0.0), part,
                options,
            )  # fmt: skip
            (loss.total * options.micro_batch / size).backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                entropy = masked_mean(entropy_of(logits_BRV), part.mask_BR)
            rows.append([loss.kl, loss.clipped, loss.policy, loss.value, loss.value_clipped, entropy, loss.ratio])
        optimizer.step()
        optimizer.zero_grad()
    table = torch.tensor(rows)
    names = ("policy/approxkl_avg", "policy/clipfrac_avg", "loss/policy_avg", "loss/value_avg", "val/clipfrac_avg",
             "policy/entropy_avg", "val/ratio")  # fmt: skip
    variance = float(table[:, -1].var()) if len(rows) > 1 else 0.0
    return dict(zip(names, table.mean(0).tolist(), strict=True)) | {"val/ratio_var": variance}


def see(actors: Actors, sequences_BT: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(B, R, V) logits of the response's tokens and (B, R) values before each; one pass if the backbone is shared."""
    policy, critic = actors.policy, actors.value_model
    if critic.shared:
        logits_BRV, output = policy.response_logits(sequences_BT, count, output_hidden_states=True)
        hidden_BTD = output.hidden_states[-1].detach().float()
    else:
        logits_BRV, _ = policy.response_logits(sequences_BT, count)
        hidden_BTD = critic.backbone(**attended(sequences_BT, policy.pad_id)).hidden_states[-1]
    return logits_BRV, critic.score(hidden_BTD[:, -count - 1 : -1]).squeeze(-1)
