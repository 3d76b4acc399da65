"""Guidance: demonstrations that a policy keeps learning from while GRPO trains it.

GRPO can only reinforce what the policy samples, and a small policy never learns what it hardly ever samples. So a step
may also train on a few demonstrations, whose loss has a weight: CHORD, https://arxiv.org/abs/2508.11408, simplified:
the two losses are added instead of mixed by mu and 1 - mu, and tokens are not weighted by their probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from forage.agent.episode import Episode
from forage.data.splits import in_rounds
from forage.grpo.options import GuidanceOptions


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

    def at(self, step: int) -> Demonstrations:
        weight = self.options.demonstration_weight
        if not self.episodes or not weight:
            return Demonstrations()
        return Demonstrations(in_rounds(self.episodes, step, self.options.demonstrations_per_step, self.seed), weight)


def open_guide(options: GuidanceOptions, seed: int, read: Callable[[Path], Sequence[Episode]]) -> Guide:
    """Read the demonstrations, if there are any, with a reader that knows which are fit to learn from."""
    return Guide(options, read(options.demonstrations) if options.demonstrations else (), seed)
