"""Guidance: demonstrations that a policy goes on learning from while GRPO trains it.

GRPO can only raise what the policy's own samples contain, and what a small one hardly ever says it never learns to say.
So a step may also hold a few demonstrations, whose loss counts by a weight: CHORD, https://arxiv.org/abs/2508.11408.
Simplified: the two losses are added, not mixed by mu and 1 - mu, and tokens are not weighed by their probability.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.episode import Episode, read_episodes
from core.errors import UserError, check_at_least_one, check_at_least_zero
from core.rounds import in_rounds


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
