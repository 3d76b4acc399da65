"""Remembering: an agent for several systems in turn, which plays none of their common episodes twice.

Equal questions, samples and seeds draw equal tokens, so the eight candidates of best-of-8 are those of self-consistency
over 8 too, and the first of them is plain sampling. To play them once saves the time, and compares ways of choosing
among the very same candidates. What it saved is added to the figures of time again: a system costs what it costs alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from forage.agent.agent import Agent, Speak
from forage.agent.episode import Episode
from forage.data.records import Question


@dataclass
class Shares:
    """Seconds shared out among episodes by when they end, which add up to all of the time; and those that were saved.

    Example: after a start at 10 s, episodes that end at 12 s and 15 s have 2 and 3 s.
    """

    last: float = 0.0
    saved: float = 0.0

    def start(self) -> None:
        self.last, self.saved = time.perf_counter(), 0.0

    def lap(self) -> float:
        before, self.last = self.last, time.perf_counter()
        return self.last - before

    def take_saved(self) -> float:
        saved, self.saved = self.saved, 0.0
        return saved


@dataclass(frozen=True)
class Remembering(Agent):
    """An agent that knows what it played. An episode that the engine gave up on is played again."""

    played: dict[tuple[Question, int, int, str], tuple[Episode, float]] = field(default_factory=dict)
    """With its share of the time, by question, sample, seed and what was asked."""
    shares: Shares = field(default_factory=Shares)

    async def play(
        self, question: Question, sample: int = 0, seed: int = 0, speak: Speak | None = None, asked: str = ""
    ) -> Episode:
        if speak:  # says something else than the policy would
            return await super().play(question, sample, seed, speak, asked)
        key = (question, sample, seed, asked)
        if key in self.played:
            episode, share = self.played[key]
            self.shares.saved += share
            return episode
        episode = await super().play(question, sample, seed, asked=asked)
        if episode.stop != "engine":
            self.played[key] = (episode, self.shares.lap())
        return episode
