"""Update: turns a step's episodes into advantages, and changes the policy by their loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forage.agent.episode import Episode, Segment
from forage.agent.rewards import Floats, combine_rewards, names_of_rewards
from forage.errors import UserError, first_line
from forage.grpo.learner import REFERENCE, Learner
from forage.grpo.losses import (
    ScoredBatch,
    Totals,
    add_stats,
    advantages,
    count_totals,
    loss_sums,
    loss_terms,
    overlong_penalty,
    policy_loss,
    summary,
    widest,
)
from forage.grpo.options import LossOptions, UpdateOptions
from forage.grpo.teacher import Teacher
from forage.metrics import grouped
from forage.optimizer import CPU_BUDGET
from forage.policy.packing import Budget, TokenBatch, Tokens, needed, pack, pack_trees, values_like
from forage.rollout.plans import is_flat
from forage.runs.stats import Phases


@dataclass(frozen=True)
class TrainingBatch:
    """A step's episodes with their advantages."""

    episodes: Sequence[Episode]
    combined_N: Floats
    """Each episode's rewards combined into the one that training learns from."""
    advantages_N: Tensor
    keep_N: Tensor
    """1, or 0 for an episode that is left out of the loss."""
    failed: int = 0
    """Episodes that an agent of get_agent did not finish, which says nothing about the policy: not among these."""
    credits: Sequence[Sequence[float]] = ()
    """What is added to the advantage, by episode and token; empty where tokens have no credit of their own."""

    def teaches(self, number: int, teacher: Teacher | None = None) -> bool:
        """Whether an episode has a gradient, were there no KL term; every one that is kept has, with a teacher."""
        credits = self.credits[number] if self.credits else ()
        return bool(self.keep_N[number] and (teacher or self.advantages_N[number] or any(credits)))


OVERLONG_MARGIN = 256  # tokens before --max-tokens at which --overlong punish begins


def prepare(
    episodes: Sequence[Episode], options: UpdateOptions, weights: Mapping[str, float] | None = None,
    max_tokens: int = 0, *, replaces_flat: bool = False,
) -> TrainingBatch:  # fmt: skip
    """Rewards become advantages, by comparing a question's episodes. Without `weights` all rewards count the same.

    `replaces_flat`: flat groups were replaced (`Plan.wanted`), so they are not compared: a length penalty, being all
    they differ in, would be scaled up to a full advantage.
    """
    if lost := [episode for episode in episodes if episode.stop == "engine"]:
        raise UserError(
            f"the engine didn't finish {len(lost)} episodes, such as {lost[0].id} ({lost[0].cause}), which says "
            "nothing about the policy; put the step's episodes aside, then re-run the same command"
        )
    usable = [episode for episode in episodes if episode.stop != "agent"]
    if not usable:
        raise UserError("no episode of this step is usable; is the sampling server up, or --max-staleness too small?")
    weights = weights or dict.fromkeys(names_of_rewards(usable), 1.0)
    rewards_NR = np.array([[episode.rewards.get(name, np.nan) for name in weights] for episode in usable])
    combined_N = combine_rewards(rewards_NR, options.combine, [*weights.values()])
    groups_N = np.array([episode.question_id for episode in usable])
    if options.overlong == "punish":
        lengths = [episode.length for episode in usable]
        combined_N = combined_N + overlong_penalty(lengths, max_tokens, min(OVERLONG_MARGIN, max_tokens)).numpy()
    cut_N = np.array([options.overlong == "mask" and e.stop in ("tokens", "turn_tokens") for e in usable])
    rewards_of = grouped((episode.question_id, episode.reward) for episode in usable)
    compared_N = np.array([not (replaces_flat and is_flat(rewards_of[name])) for name in groups_N])
    if options.learn_from or options.advantage == "best":  # what is picked must not be cut
        compared_N &= ~cut_N
    if options.learn_from:
        compared_N[compared_N] = widest(combined_N[compared_N], groups_N[compared_N], options.learn_from)
    advantages_N = np.zeros(len(usable))
    advantages_N[compared_N] = advantages(combined_N[compared_N], groups_N[compared_N], options.advantage)
    keep_N = compared_N & ~cut_N
    credits = [episode.credits if keep else () for episode, keep in zip(usable, keep_N, strict=True)]
    return TrainingBatch(
        usable, combined_N, torch.from_numpy(advantages_N), torch.from_numpy(keep_N).float(),
        len(episodes) - len(usable), scaled_credits(credits, options.word_cost),
    )  # fmt: skip


LEAST_CREDIT = 0.05  # words that are worth less than this at the root mean square are not scaled up


def scaled_credits(credits: Sequence[Sequence[float]], cost: float = 0.0) -> list[Sequence[float]]:
    """Credits over the root mean square of what words are worth, so that they are of the size of advantages.

    The `cost` that was subtracted from each does not count in that mean, nor does a word that is worth nothing: where
    words are worth next to nothing, their cost must not become as large as an advantage. None if all are 0. Example:
    (0, 3, 4) and () give (0, .849, 1.131) and (), as the root of (9 + 16) / 2 is 3.54.
    """
    if not any(map(any, credits)):
        return []
    worth = np.array([value + cost for each in credits for value in each if value])
    worth = worth[np.abs(worth) > 1e-9]
    size = max(LEAST_CREDIT, float(np.sqrt((worth**2).mean())) if worth.size else 0.0)
    return [tuple(value / size for value in each) for each in credits]


@dataclass(frozen=True)
class UpdateContext:
    """What an update needs beside the policy and its episodes."""

    options: UpdateOptions
    temperature: float
    """Sampling temperature of the episodes: the loss is that of the distribution they were drawn from."""
    share_prompts: bool
    phases: Phases = field(default_factory=Phases)
    teacher: Teacher | None = None

    def pack(self, episodes: Sequence[Tokens], budget: int) -> list[TokenBatch]:
        return (pack_trees if self.share_prompts else pack)(episodes, budget)

    @contextmanager
    def fitting(self, learner: Learner, rows: Sequence[Tokens]) -> Iterator[Callable[..., Any]]:
        """Tries a pass over the rows with as many tokens at once as memory holds, which the learner remembers."""
        most = self.options.memory.token_budget or CPU_BUDGET
        budget = Budget(min(most, learner.lowered_budget or most))
        yield partial(
            budget.within_memory, longest=max(len(needed(row)) for row in rows),
            drop_gradients=learner.drop_gradients, can_start_over=learner.can_start_over,
        )  # fmt: skip
        if budget.tokens < most:
            learner.lowered_budget = budget.tokens


@dataclass(frozen=True)
class TaughtEpisodes:
    """The episodes of a step that have a gradient, each segment by itself. Shape: N is their number."""

    episodes: Sequence[Episode | Segment]
    advantages_N: Tensor
    totals: Totals
    """Counts of all episodes that are kept, including those without a gradient."""
    credits: Sequence[Sequence[float]] = ()
    """By episode and token, as in the batch."""
    teacher_NT: Tensor | None = None
    """Log-probabilities by a teacher."""


class OldLogprobs:
    """Log-probabilities by the policy at the start of the step; the first epoch computes them, later ones compare.

    They are kept by episode and position, not by micro-batch: after running out of memory, micro-batches are smaller.
    """

    def __init__(self, episodes: Sequence[Tokens], device: torch.device) -> None:
        self.known = False
        self.values_NT = torch.zeros(len(episodes), max((len(e.ids) for e in episodes), default=0), device=device)

    def of(self, part: TokenBatch) -> Tensor | None:
        """Laid out as the micro-batch is, arbitrary where nothing was sampled; None in the first epoch."""
        return self.values_NT[part.sequence_BT, part.positions_BT] if self.known else None

    def keep(self, part: TokenBatch, logprobs_BT: Tensor) -> None:
        sampled_BT = part.sampled_BT > 0
        place = part.sequence_BT[sampled_BT], part.positions_BT[sampled_BT]
        self.values_NT[place] = logprobs_BT[sampled_BT].to(self.values_NT)


def update(learner: Learner, batch: TrainingBatch, context: UpdateContext) -> dict[str, float]:
    """Update the policy once per epoch; return the figures of the last epoch."""
    taught, teacher = taught_episodes(batch, context.options.loss, context.teacher), context.teacher
    figures = {
        "learning_rate": context.options.learning_rate, "grad_norm": 0.0, "tokens": 0.0, "micro_batches": 0.0,
        "taught": float(sum(batch.teaches(number, teacher) for number in range(len(batch.episodes)))),
    }  # fmt: skip
    if not taught.episodes:
        return figures
    old = OldLogprobs(taught.episodes, learner.device)
    with context.fitting(learner, taught.episodes) as fitting:
        if teacher and context.options.teach == "sampled":
            with context.phases("teacher"):
                packed = partial(teacher.logprobs, learner, taught.episodes, context.temperature)
                marks_NT = fitting(lambda tokens: packed(partial(context.pack, budget=tokens)))
                taught = replace(taught, teacher_NT=marks_NT)
        first: list[dict[str, Tensor]] = []
        for _ in range(context.options.epochs):  # memory that runs out leaves those before it: they changed the policy
            sums = fitting(lambda tokens: learn_epoch(tokens, learner, taught, old, context))
            first = first or sums
            figures["grad_norm"] = change_weights(learner, context)
            old.known = True
        with context.phases("likelihood"):
            gain = fitting(lambda tokens: likelihood_gain(learner, taught, old, tokens, context))
    counts = {"episodes": float(len(taught.episodes)), "micro_batches": float(len(sums))}
    drawn = {name: each for name, each in add_stats(first).items() if name.startswith("excess")}
    totals = {name: each for name, each in add_stats(sums).items() if name not in drawn}
    drawn = {} if context.options.picks else drawn  # what is picked is no draw
    return figures | summary(learner.sums(totals | drawn)) | counts | gain


PROBED = 1 / 8  # of the episodes that are learnt from: an eighth of a forward pass, a thirtieth of a step on CPUs


def likelihood_gain(
    learner: Learner, taught: TaughtEpisodes, old: OldLogprobs, budget: int, context: UpdateContext
) -> dict[str, float]:
    """How much likelier the update made what better episodes than their group's mean had sampled.

    In nats per token: the mean log-probability after the update less that before it, over the sampled tokens of a few
    episodes with an advantage above 0, evenly spread over the step. None where no episode has one. An update can lower
    it, as what worse episodes have in common with these is made unlikely; a policy that it lowers step after step
    collapses, and long before its rewards do (https://arxiv.org/abs/2512.04220).
    """
    better = (taught.advantages_N > 0).nonzero()[:, 0]
    most = math.ceil(len(taught.episodes) * PROBED)
    chosen = better[:: max(1, len(better) // most)][:most]
    if not len(chosen):
        return {}
    # Each process knows those of the micro-batches that it learnt from, which others may score now.
    before_NT = learner.sums({"before": old.values_NT[chosen.to(old.values_NT.device)]})["before"]
    sums = []
    for part in learner.shard(context.pack([taught.episodes[number] for number in chosen], budget)):
        gains_BT = learner.score_frozen(part, context.temperature) - before_NT[part.sequence_BT, part.positions_BT]
        counts_BT = part.predicted_BT.to(gains_BT.device)
        sums.append({"gained": gains_BT[counts_BT].sum(), "tokens": counts_BT.sum()})
    total = learner.sums(add_stats(sums))
    return {"likelihood_gain": (total["gained"] / total["tokens"].clamp(min=1)).item()}


def learn_epoch(
    budget: int, learner: Learner, taught: TaughtEpisodes, old: OldLogprobs, context: UpdateContext
) -> list[dict[str, Tensor]]:
    """Add the gradients of all episodes, in micro-batches of at most `budget` tokens. Returns each one's sums."""
    parts = learner.shard(context.pack(taught.episodes, budget))
    return [
        learn_part(learner, part, old, taught, context, last=number == len(parts))
        for number, part in enumerate(parts, 1)
    ]


def change_weights(learner: Learner, context: UpdateContext) -> float:
    """Change the policy by the gradients; returns their norm. Without memory for that, the run can only stop.

    Some weights may have been changed and others not. The checkpoint is of before the step, so nothing is lost.
    """
    try:
        return learner.step(context.options.learning_rate)
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"out of memory in the optimizer ({first_line(error)}); share its state between several processes "
            "(--sharding) or keep it on the CPU (--offload optimizer), then re-run the same command to resume"
        ) from error


def taught_episodes(batch: TrainingBatch, options: LossOptions, teacher: Teacher | None = None) -> TaughtEpisodes:
    """Leave out episodes without a gradient: those not kept and, without a KL term or a teacher, with advantage 0."""
    parts = [(number, part) for number, episode in enumerate(batch.episodes) for part in episode.segments]
    taught = [
        (number, part)
        for number, part in parts
        if batch.keep_N[number] and (options.beta or batch.teaches(number, teacher))
    ]
    numbers, segments = [number for number, _ in taught], [part for _, part in taught]
    credits = [
        (batch.credits[number] if part is batch.episodes[number] else ()) or [0.0] * len(part.ids)
        for number, part in taught
        if batch.credits
    ]
    totals = count_totals([part for _, part in parts], batch.keep_N[[number for number, _ in parts]])
    return TaughtEpisodes(segments, batch.advantages_N[numbers], totals, credits)


def learn_part(
    learner: Learner, part: TokenBatch, old: OldLogprobs, taught: TaughtEpisodes, context: UpdateContext, *, last: bool
) -> dict[str, Tensor]:
    """Add a micro-batch's gradients. Returns its sums."""
    options, temperature = context.options.loss, context.temperature
    states = []
    if context.teacher and context.options.teach == "all":
        with context.phases("teacher"):
            states.append(context.teacher.states(learner, part, taught.episodes))
    with context.phases("logprobs"):
        reference_BT = learner.kept(REFERENCE, part, temperature) if options.beta else None
        scores = learner.score(part, temperature, *states)
    old_BT = old.of(part)
    if old_BT is None:
        old_BT = scores.logprobs_BT.detach()
        old.keep(part, old_BT)
    scored = ScoredBatch(
        part, taught.advantages_N, scores.logprobs_BT, old_BT,
        values_like(part, [each.logprobs for each in taught.episodes]), reference_BT, scores.entropy_BT,
        credits_BT=values_like(part, taught.credits) if taught.credits else None,
        teacher_BT=None if taught.teacher_NT is None else taught.teacher_NT[part.sequence_BT, part.positions_BT],
        divergence_BT=scores.divergence_BT,
    )  # fmt: skip
    terms = loss_terms(scored, options, taught.totals)
    loss, sums = policy_loss(terms, options), loss_sums(terms)
    with context.phases("backward"):
        learner.backward(loss, last=last)
    return sums
