"""Update: what a step's episodes teach, and the change of the policy by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from forage.agent.combination import Floats, combine_rewards
from forage.agent.episode import Episode
from forage.errors import UserError, first_line
from forage.grpo.guidance import Shown
from forage.grpo.learner import Learner
from forage.grpo.losses import (
    add_stats,
    advantages,
    count_totals,
    demonstration_loss,
    flat_groups,
    overlong_penalty,
    policy_loss,
    summary,
    widest,
)
from forage.grpo.options import UpdateOptions
from forage.policy.packing import TokenBatch, pack, pack_shared, values_like
from forage.runs.progress import Phases


@dataclass(frozen=True)
class TrainingBatch:
    """A step's episodes and what is to be learnt from each."""

    episodes: Sequence[Episode]
    combined_N: Floats
    """The rewards as one."""
    advantages_N: Tensor
    keep_N: Tensor
    """1, or 0 where an episode is left out of the loss."""
    flat: int
    """Groups whose episodes are all rewarded alike."""

    def rewards_by_question(self) -> dict[str, list[float]]:
        by_question: dict[str, list[float]] = {}
        for episode in self.episodes:
            by_question.setdefault(episode.question_id, []).append(episode.reward)
        return by_question


def prepare(
    episodes: Sequence[Episode], options: UpdateOptions, weights: Sequence[float] = (), max_tokens: int = 0
) -> TrainingBatch:
    """Combine the rewards over the whole step, and compare each group's episodes."""
    if not episodes:
        raise UserError("no episode of this step can be used; is the sampling server up, or --max-staleness too small?")
    names = list(episodes[0].rewards)
    groups = [episode.question_id for episode in episodes]
    rewards_NR = np.array([[episode.rewards[name] for name in names] for episode in episodes])
    combined_N = combine_rewards(rewards_NR, options.combine, weights or None, groups)
    if options.overlong == "punish":
        lengths = [len(episode.ids) for episode in episodes]
        combined_N = combined_N + overlong_penalty(lengths, max_tokens, options.overlong_margin).numpy()
    masked = ("tokens", "turn_tokens") if options.overlong == "mask" else ()
    given_N = torch.from_numpy(combined_N)
    chosen_N = widest(given_N, groups, options.learn_from or len(episodes))
    advantages_N = torch.zeros_like(given_N)
    advantages_N[chosen_N] = advantages(
        given_N[chosen_N],
        [group for group, chosen in zip(groups, chosen_N.tolist(), strict=True) if chosen],
        "none" if options.combine == "gdpo" else options.advantage,  # what gdpo makes is an advantage already
    )
    return TrainingBatch(
        episodes,
        combined_N,
        advantages_N,
        chosen_N * torch.tensor([float(episode.stop not in masked) for episode in episodes]),
        len(flat_groups(given_N, groups)),
    )


@dataclass(frozen=True)
class Pass:
    """What an update goes by beside its options."""

    rate: float
    """The learning rate."""
    temperature: float
    """At which the episodes were sampled: the policy is the distribution they came from."""
    share_prompts: bool
    shown: Shown = field(default_factory=Shown)
    """Demonstrations to learn from as well."""


def update(
    learner: Learner, batch: TrainingBatch, options: UpdateOptions, by: Pass, phases: Phases
) -> dict[str, float]:
    """Change the policy; the figures of it. Where memory runs out, again from the start with half the budget."""
    budget = options.memory.token_budget or (16384 if torch.cuda.is_available() else 1024)
    while True:
        try:
            return update_within(budget, learner, batch, options, by, phases)
        except torch.OutOfMemoryError as error:
            learner.forget()
            longest = max(len(episode.ids) for episode in (*batch.episodes, *by.shown.episodes))
            if budget <= longest or learner.world > 1:  # alone, a process can't begin anew what all do together
                raise UserError(
                    f"out of memory with micro-batches of {budget} tokens ({first_line(error)}); give a lower "
                    "--token-budget, --gradient-checkpointing, or shorter episodes (--max-tokens)"
                ) from error
        torch.cuda.empty_cache()
        budget = max(budget // 2, longest)
        print(f"out of memory: the update is made again with micro-batches of {budget} tokens", flush=True)


def update_within(
    budget: int, learner: Learner, batch: TrainingBatch, options: UpdateOptions, by: Pass, phases: Phases
) -> dict[str, float]:
    taught = [
        number
        for number, advantage in enumerate(batch.advantages_N.tolist())
        if batch.keep_N[number] and (advantage or options.loss.beta)  # the others have no gradient
    ]
    episodes = [batch.episodes[number] for number in taught]
    if not episodes and not by.shown.episodes:
        return {"learning_rate": by.rate, "grad_norm": 0.0, "tokens": 0.0, "micro_batches": 0.0}
    advantages_N, sampled = batch.advantages_N[taught], [episode.logprobs for episode in episodes]
    totals = count_totals(batch.episodes, batch.keep_N)  # all that are kept count, taught or not
    if by.share_prompts:
        parts = pack_shared(episodes, [episode.question_id for episode in episodes], budget)
    else:
        parts = pack(episodes, budget)
    parts, shown = learner.shard(parts), learner.shard(pack(by.shown.episodes, budget))
    old: dict[int, Tensor] = {}  # of the policy as the step found it, by micro-batch
    for _ in range(options.epochs):
        sums = []
        for number, part in enumerate(parts):
            with phases("logprobs"):
                reference_BT = learner.reference(part, by.temperature) if options.loss.beta else None
                scores = learner.score(part, by.temperature)
            old_BT = old.setdefault(number, scores.logprobs_BT.detach())
            loss, figures = policy_loss(
                scores.logprobs_BT, old_BT, values_like(part, sampled), advantages_N, part, options.loss, totals,
                reference_BT=reference_BT, entropy_BT=scores.entropy_BT,
            )  # fmt: skip
            with phases("backward"):
                learner.backward(loss, last=not shown and number + 1 == len(parts))
            sums.append(figures)
        shown_loss = learn_shown(learner, shown, by, phases)
        norm = learner.step(by.rate, options.optimizer.max_norm)
    total = summary(learner.sums(add_stats(sums))) if sums else {"tokens": 0.0}
    if shown:
        total["demonstration_loss"] = learner.sums({"loss": shown_loss})["loss"].item()
    return total | {"learning_rate": by.rate, "grad_norm": norm, "micro_batches": float(len(parts) + len(shown))}


def learn_shown(learner: Learner, parts: Sequence[TokenBatch], by: Pass, phases: Phases) -> Tensor:
    """Add the gradients of the demonstrations; this process's share of their loss."""
    tokens, total = count_totals(by.shown.episodes).tokens, torch.zeros((), device=learner.device)
    for number, part in enumerate(parts):
        with phases("logprobs"):
            loss = demonstration_loss(learner.score(part, by.temperature).logprobs_BT, part, tokens)
        with phases("backward"):
            learner.backward(loss * by.shown.weight, last=number + 1 == len(parts))
        total += loss.detach()
    return total


def learning_rate(step: int, options: UpdateOptions, max_steps: int) -> float:
    """Example: 4 warm-up steps of 12, linear: 1/4, 2/4, 3/4, 1, and then 8/8, 7/8, ..., 1/8 of it."""
    if step < options.warmup_steps:
        return options.optimizer.learning_rate * (step + 1) / options.warmup_steps
    if options.schedule == "constant":
        return options.optimizer.learning_rate
    done = (step - options.warmup_steps) / max(1, max_steps - options.warmup_steps)
    return options.optimizer.learning_rate * (
        1 - done if options.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    )
