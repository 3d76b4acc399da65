"""Served: whether a step's episodes were sampled by the adapter that they name.

A sampler may use the version before, the base, or a part of an adapter, and its answers look as always. So the trainer
scores a few of each sampler's tokens itself. Where the sampler's log-probabilities are others, and further off than
rounding was when it last looked, the trainer scores them by the version before and by the base too: a sampler that lies
on the way to one of these serves that one, or something in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from forage.agent.episode import Episode
from forage.errors import UserError
from forage.grpo.learner import BASE, PREVIOUS, Learner
from forage.grpo.resume import Run
from forage.grpo.update import UpdateContext
from forage.metrics import grouped
from forage.policy.adapters import adapter_path, sampled_by, version_name
from forage.processes import first_alone
from forage.runs.run_folder import set_aside

TOKENS = 48  # of each sampler: enough, and a small part of a step's
EQUAL = 1e-3  # nats a token: nothing that differs from the adapter by less is worth a word
SURE = 4  # standard errors
STALE = 0.6  # of the way to the version before; rounding in both may come out at a half
PART = 0.15  # of the way to the base: a weaker adapter, or one that was loaded by half
FURTHER = 1.7  # times as far off as rounding was; a version before that is surely told apart is off by more
FOREIGN = 0.5  # nats a token, root mean square: no rounding, but another base or another run's adapter


def check_served(run: Run, learner: Learner, episodes: Sequence[Episode], context: UpdateContext, step: str) -> None:
    """Stop before anything is learnt from what another policy sampled, with the episodes of `step` put into stale/."""
    run_dir, version = run.options.run_dir, version_name(run.step)
    for sampler, some in of_each_sampler(episodes, run.step).items():
        with context.phases("served"):
            wrong = served_instead(run, learner, sampler, some, context)
        if wrong:
            served = f"{sampler} served {wrong} as {version}"
            first_alone(set_aside, run_dir, [run_dir / "episodes" / step], served)
            raise UserError(f"{served}; start it and all workers again, then re-run the same command")


def of_each_sampler(episodes: Sequence[Episode], version: int) -> dict[str, list[Episode]]:
    """By server, or by worker, the most uncertain episodes that this version sampled there, up to TOKENS of its tokens.

    A token that is nearly certain stays so whichever adapter samples. Whole questions come first, as their episodes
    share what is computed.
    """
    sampled = [each for each in episodes if each.sampled and sampled_by(each.adapter)[0] == version]
    by_sampler = grouped((each.server or f"{each.worker}'s engine", each) for each in sampled)
    return {sampler: enough(uncertain_first(every)) for sampler, every in sorted(by_sampler.items())}


def uncertain_first(episodes: Sequence[Episode]) -> list[Episode]:
    """By the mean log-probability of questions, and then of their episodes."""

    def mean(some: Sequence[Episode]) -> float:
        return sum(sum(part.logprobs) for each in some for part in each.segments) / sum(each.sampled for each in some)

    questions = grouped((each.question_id, each) for each in episodes).values()
    return [each for some in sorted(questions, key=mean) for each in sorted(some, key=lambda one: mean([one]))]


def enough(episodes: Sequence[Episode]) -> list[Episode]:
    """Example: of episodes with 40, 30 and 20 sampled tokens, the first two."""
    before = accumulate((each.sampled for each in episodes), initial=0)
    return [each for each, tokens in zip(episodes, before, strict=False) if tokens < TOKENS]


@dataclass(frozen=True)
class Way:
    """Where a sampler lies on the way from the adapter in training (0) to another policy (1)."""

    share: float
    surely: float
    """SURE standard errors below that."""
    rest: float
    """Nats a token, root mean square, by which it lies beside the way."""
    size: float
    """... from one end of the way to the other."""


def on_the_way(own_T: Tensor, other_T: Tensor, given_T: Tensor) -> Way:
    """Example: own -1, -1, the other's -3, -1, and -2, -1 given: half of the way, without a rest."""
    way_T, gone_T = other_T - own_T, given_T - own_T
    length = way_T.square().sum()
    if not length:
        return Way(0.0, 0.0, 0.0, 0.0)
    share = (gone_T @ way_T) / length
    rest = (gone_T - share * way_T).square().mean().sqrt()
    error = rest * (len(way_T) / max(1, len(way_T) - 1)) ** 0.5 / length.sqrt()
    return Way(float(share), float(share - SURE * error), float(rest), float((length / len(way_T)).sqrt()))


def served_instead(
    run: Run, learner: Learner, sampler: str, episodes: Sequence[Episode], context: UpdateContext
) -> str:
    """What sampled them instead, in words; empty if it was the adapter in training, as far as these tokens tell."""
    rows = [segment for episode in episodes for segment in episode.segments]
    rows_T, places_T = torch.tensor([[n, t] for n, row in enumerate(rows) for t, bit in enumerate(row.mask) if bit]).T
    given_T = torch.tensor([row.logprobs[t] for row in rows for t, bit in enumerate(row.mask) if bit])

    def scores(name: str = "") -> Tensor:
        with context.fitting(learner, rows) as fitting:
            scored = partial(learner.table, rows, context.temperature, name=name)
            table_NT: Tensor = fitting(lambda tokens: scored(partial(context.pack, budget=tokens)))
        return table_NT.cpu()[rows_T, places_T]

    own_T = scores()
    if (given_T - own_T).abs().mean() < EQUAL:
        return ""
    off = float((given_T - own_T).square().mean().sqrt())
    if off < FURTHER * run.rounding.get(sampler, 0.0):
        return ""
    base = on_the_way(own_T, scores(BASE), given_T)
    before = adapter_path(run.options.run_dir, run.step - 1)
    if first_alone(before.exists):
        learner.keep(PREVIOUS, before)
        way = on_the_way(own_T, scores(PREVIOUS), given_T)
        if way.surely > STALE and way.share < 2 - STALE and way.rest <= base.rest:
            return before.name
    if base.surely > PART and base.rest < base.size / 2:  # else rounding is all there is
        return "the base" if base.share > 1 - PART else f"an adapter of {1 - base.share:.0%} of its effect"
    if off > max(FOREIGN, base.size / 2):
        return "another model"
    run.rounding[sampler] = off
    return ""
