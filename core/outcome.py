"""Outcome: what a way of answering gave for one question, and what it cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from core.agent import Agent
from core.corpus import Question
from core.episode import Episode


@dataclass(frozen=True)
class Outcome:
    """Example: best of 3 has the best episode, all three in `tried`, and the tokens of the judge in `extra_sampled`."""

    episode: Episode
    """The one that counts: its answer, and the chunks its searches found."""
    tried: tuple[Episode, ...]
    """All that were played for it, this one among them."""
    extra_sampled: int = 0
    """Tokens sampled beside episodes: critiques, comparisons, hypothetical passages; less those that several share."""
    extra_read: int = 0
    """Tokens those were sampled after."""
    extra_searches: int = 0
    """Searches beside episodes; less those that several share."""
    extra_turns: int = 0
    """Less than 0 where episodes share turns."""

    @property
    def sampled(self) -> int:
        """Tokens the policy wrote."""
        return sum(episode.sampled for episode in self.tried) + self.extra_sampled

    @property
    def read(self) -> int:
        """Tokens it was given: prompts and results, each counted once in each episode."""
        return sum(len(episode.ids) - episode.sampled for episode in self.tried) + self.extra_read

    @property
    def searches(self) -> int:
        return sum(len(episode.searches) for episode in self.tried) + self.extra_searches

    @property
    def turns(self) -> int:
        """Of the policy; what it wrote beside episodes is in the tokens only."""
        return sum(len(episode.turns) for episode in self.tried) + self.extra_turns


# A way of answering: plain sampling, a baseline, a test-time strategy. The number is the seed.
Strategy = Callable[[Agent, Question, int], Awaitable[Outcome]]
