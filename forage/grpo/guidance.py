"""Guidance: demonstrations that a policy goes on learning from while GRPO trains it.

GRPO can only raise what the policy's own samples contain, and what a small one hardly ever says it never learns to say.
So a step may also hold a few demonstrations, whose loss counts by a weight: CHORD, https://arxiv.org/abs/2508.11408.
Simplified: the two losses are added, not mixed by mu and 1 - mu, and tokens are not weighed by their probability.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from forage.agent.episode import Episode, read_episodes
from forage.errors import UserError
from forage.grpo.options import GuidanceOptions
from forage.schedule import in_rounds


@dataclass(frozen=True)
class Shown:
    """What a step shows."""

    episodes: Sequence[Episode] = ()
    weight: float = 0.0


@dataclass(frozen=True)
class Guide:
    """What there is to be shown."""

    options: GuidanceOptions
    episodes: Sequence[Episode]
    seed: int

    def at(self, step: int) -> Shown:
        weight = weight_at(step, self.options)
        if not self.episodes or not weight:
            return Shown()
        return Shown(in_rounds(self.episodes, step, self.options.demonstrations_per_step, self.seed), weight)


def weight_at(step: int, options: GuidanceOptions) -> float:
    """Example: weight .2 over 4 steps: .2, .15, .1, .05, and then 0."""
    if not options.demonstration_steps:
        return options.demonstration_weight
    return options.demonstration_weight * max(0.0, 1 - step / options.demonstration_steps)


def open_guide(options: GuidanceOptions, seed: int, questions: Collection[str]) -> Guide:
    """Read the file. Only `questions` may be trained on, as a demonstration gives its question's answer away."""
    if options.demonstrations is None:
        return Guide(options, (), seed)
    episodes = list(read_episodes(options.demonstrations))
    if not episodes:
        raise UserError(f"{options.demonstrations} holds no episode")
    known = set(questions)
    strange = next((episode.question_id for episode in episodes if episode.question_id not in known), None)
    if strange is not None:
        raise UserError(f"{options.demonstrations}: question {strange} is not one of train.jsonl; is it of other data?")
    return Guide(options, episodes, seed)
