"""Guidance: demonstrations that a policy keeps learning from while GRPO trains it.

GRPO can only reinforce what the policy samples, and a small policy never learns what it hardly ever samples. So a step
may also train on a few demonstrations, whose loss has a weight: CHORD, https://arxiv.org/abs/2508.11408, simplified:
the two losses are added instead of mixed by mu and 1 - mu, and tokens are not weighted by their probability. Or it may
imitate only where the policy fails, which DGPO does by a KL term to a teacher, https://arxiv.org/abs/2508.20324; here
it is the loss of the demonstration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from forage.agent.episode import Episode
from forage.grpo.options import GuidanceOptions
from forage.schedule import in_rounds


@dataclass(frozen=True)
class Demonstrations:
    """The demonstrations of one step, and the weight of their loss."""

    episodes: Sequence[Episode] = ()
    weight: float = 0.0


@dataclass(frozen=True)
class Guide:
    """All demonstrations, and which step trains on which of them."""

    options: GuidanceOptions
    episodes: Sequence[Episode]
    seed: int

    def at(self, step: int, best: Mapping[str, float]) -> Demonstrations:
        """`best`: the highest reward of each of the step's questions."""
        weight = weight_at(step, self.options)
        if not self.episodes or not weight:
            return Demonstrations()
        if self.options.demonstrate_below:
            failed = {question for question, reward in best.items() if reward < self.options.demonstrate_below}
            return Demonstrations([episode for episode in self.episodes if episode.question_id in failed], weight)
        return Demonstrations(in_rounds(self.episodes, step, self.options.demonstrations_per_step, self.seed), weight)


def weight_at(step: int, options: GuidanceOptions) -> float:
    """Weight of the demonstrations' loss. Example: .2 falling over 4 steps: .2, .15, .1, .05, then 0."""
    if not options.demonstration_steps:
        return options.demonstration_weight
    return options.demonstration_weight * max(0.0, 1 - step / options.demonstration_steps)


def open_guide(options: GuidanceOptions, seed: int, read: Callable[[Path], Sequence[Episode]]) -> Guide:
    """Read the demonstrations, if there are any, with a reader that knows which are fit to learn from."""
    return Guide(options, read(options.demonstrations) if options.demonstrations else (), seed)
