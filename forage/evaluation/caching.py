"""CachingAgent: an agent that several systems use in turn, which plays no episode they share twice.

Equal questions, samples and seeds draw equal tokens, so the eight candidates of best-of-8 are also those of
self-consistency over 8, and the first of them is plain sampling. Playing them once saves time, and ways of choosing
are compared on the very same candidates. The saved seconds are added back to each system's time, so a system costs what
it would cost alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from forage.agent.agent import Agent, Speak
from forage.agent.episode import Episode
from forage.data.records import Question


@dataclass
class Stopwatch:
    """Splits wall-clock seconds among things as they end, so that all laps add up to the whole time.

    Example: after a start at 10 s, things that end at 12 s and 15 s get 2 and 3 s.
    """

    last: float = 0.0
    saved: float = 0.0
    """Seconds that were saved since take_saved was last called."""

    def start(self) -> None:
        self.last, self.saved = time.perf_counter(), 0.0

    def lap(self) -> float:
        before, self.last = self.last, time.perf_counter()
        return self.last - before

    def take_saved(self) -> float:
        saved, self.saved = self.saved, 0.0
        return saved


@dataclass(frozen=True)
class CachingAgent(Agent):
    """Remembers the episodes it played. One that the engine gave up on is played again."""

    played: dict[tuple[Question, int, int, str], tuple[Episode, float]] = field(default_factory=dict)
    """Each episode and its seconds, by question, sample, seed and what was asked."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    async def play(
        self, question: Question, sample: int = 0, seed: int = 0, speak: Speak | None = None, asked: str = ""
    ) -> Episode:
        if speak:  # this changes what the policy says, so no other system can share the episode
            return await super().play(question, sample, seed, speak, asked)
        key = (question, sample, seed, asked)
        if key in self.played:
            episode, seconds = self.played[key]
            self.stopwatch.saved += seconds
            return episode
        episode = await super().play(question, sample, seed, asked=asked)
        if episode.stop != "engine":
            self.played[key] = (episode, self.stopwatch.lap())
        return episode
