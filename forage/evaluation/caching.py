"""CachingAgent: an agent that several systems use in turn, which plays no episode they share twice.

Equal questions, samples and seeds draw equal tokens, so the eight candidates of best-of-8 are also those of
self-consistency over 8, and the first of them is plain sampling. Playing them once saves time, and ways of choosing
are compared on the very same candidates. What is asked outside of the episodes, such as a critique, is kept too: two
rounds of TPO begin with what one round is. Each system is charged the time that it saved, so it costs what it would
cost alone.

Samples that an earlier call stored are taken over (player.py): a system that is added later has them as well.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from forage.agent.agent import Agent, Speak, sample_name
from forage.agent.episode import Episode
from forage.data.records import Question
from forage.engines.base import Request, Sample


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
    """Remembers episodes and replies. What the engine gave up on is sampled again."""

    played: dict[tuple[Question, str, int, str], tuple[Episode, float]] = field(default_factory=dict)
    """Each episode and its seconds, by question, the episode's id, seed and what was asked."""
    replies: dict[Request, tuple[Sample, float]] = field(default_factory=dict)
    """Each reply and its seconds."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)

    async def play(
        self, question: Question, sample: int = 0, seed: int = 0, speak: Speak | None = None, asked: str = ""
    ) -> Episode:
        if speak:  # this changes what the policy says, so no other system can share the episode
            return await super().play(question, sample, seed, speak, asked)
        key = (question, sample_name(question, sample), seed, asked)
        if key in self.played:
            episode, seconds = self.played[key]
            self.stopwatch.saved += seconds
            return episode
        episode = await super().play(question, sample, seed, asked=asked)
        if episode.stop != "engine":
            self.played[key] = (episode, self.stopwatch.lap())
        return episode

    async def reply(self, request: Request) -> Sample:
        if request in self.replies:
            sampled, seconds = self.replies[request]
            self.stopwatch.saved += seconds
            return sampled
        sampled = await super().reply(request)
        self.replies[request] = (sampled, self.stopwatch.lap())
        return sampled

    def take_over(self, question: Question, seed: int, episode: Episode, seconds: float) -> None:
        """Remember a plain sample that was played before."""
        self.played[question, episode.id, seed, ""] = (episode, seconds)

    def plain_seconds(self, question: Question, seed: int, tried: Sequence[Episode]) -> tuple[float | None, ...]:
        """For each episode the seconds it took if it is a plain sample, which any system may share; else None."""
        known = [self.played.get((question, episode.id, seed, "")) for episode in tried]
        return tuple(
            found[1] if found and found[0] is episode else None for found, episode in zip(known, tried, strict=True)
        )
