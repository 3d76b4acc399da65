"""Outcome: what a system answered to one question, and what that cost; and the log that keeps outcomes on disk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forage.agent.agent import Agent
from forage.agent.episode import Episode, append_episodes, read_episodes, write_episodes
from forage.data.records import Question
from forage.disk import append
from forage.errors import UserError
from forage.files import replacing


@dataclass(frozen=True)
class Outcome:
    """Example: best of 3 has the best episode, all three in `tried`, and the tokens of the judge in `extra_sampled`."""

    episode: Episode
    """The chosen one: its answer and the chunks its searches found are measured."""
    tried: tuple[Episode, ...]
    """All episodes that were played for it, the chosen one included."""
    extra_sampled: int = 0
    """Tokens sampled outside episodes (critiques, hypothetical passages), minus those that episodes share."""
    extra_read: int = 0
    """Tokens read outside episodes."""
    extra_searches: int = 0
    """Searches outside episodes, minus those that episodes share."""
    extra_turns: int = 0
    """Minus the turns that episodes share."""

    @property
    def sampled(self) -> int:
        """Tokens the policy wrote."""
        return sum(episode.sampled for episode in self.tried) + self.extra_sampled

    @property
    def read(self) -> int:
        """Tokens the policy was given: each episode's prompt and results."""
        return sum(len(episode.ids) - episode.sampled for episode in self.tried) + self.extra_read

    @property
    def searches(self) -> int:
        return sum(len(episode.searches) for episode in self.tried) + self.extra_searches

    @property
    def turns(self) -> int:
        """The policy's turns in episodes; what it wrote outside of them only counts as tokens."""
        return sum(len(episode.turns) for episode in self.tried) + self.extra_turns


FUSED = -1  # the turn number of a search whose hits are fused from several episodes


def is_fused(episode: Episode) -> bool:
    """Whether it has the hits of others (self_consistency.py)."""
    return any(search.turn == FUSED for search in episode.searches)


# A way of answering: plain sampling, a baseline, a test-time strategy. The integer is the seed.
Strategy = Callable[[Agent, Question, int], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Cost:
    """A line of outcomes/: which episode was chosen, and what all the question's episodes cost together."""

    question_id: str
    chosen: int
    """Index of the chosen episode among those tried."""
    tried: int
    """Number of episodes."""
    searches: int
    turns: int
    sampled: int
    read: int
    latency: float
    """Seconds from question to answer, while other questions were played too. For episodes that an earlier system
    already played, the seconds of the slowest one."""
    seconds: float
    """Seconds since the previous answer; over all questions they add up to the evaluation's time."""
    plain_seconds: tuple[float | None, ...] = ()
    """For each episode tried, its seconds if it is a plain sample, as `single` plays them, which systems that are added
    later share; None if it is another one."""

    @classmethod
    def of(cls, outcome: Outcome, latency: float, seconds: float, plain_seconds: tuple[float | None, ...] = ()) -> Cost:
        if outcome.episode not in outcome.tried:
            raise ValueError(f"the chosen episode {outcome.episode.id} is not among those tried")
        return cls(
            outcome.episode.question_id, outcome.tried.index(outcome.episode), len(outcome.tried),
            outcome.searches, outcome.turns, outcome.sampled, outcome.read, latency, seconds, plain_seconds,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """The chosen episode of one question, and its cost."""

    episode: Episode
    cost: Cost


@dataclass(frozen=True)
class OutcomeLog:
    """The log of one system in an output folder. Only one process writes it."""

    folder: Path
    name: str

    @property
    def episodes(self) -> Path:
        return self.folder / "episodes" / f"{self.name}.jsonl"

    @property
    def outcomes(self) -> Path:
        return self.folder / "outcomes" / f"{self.name}.jsonl"

    def open(self) -> set[str]:
        """Ids of the answered questions. Removes what a killed process left half written."""
        done = self._costs()
        whole = b"".join(json.dumps(asdict(cost)).encode() + b"\n" for cost in done.values())
        if self.outcomes.exists() and self.outcomes.read_bytes() != whole:
            with replacing(self.outcomes) as file:
                file.write(whole.decode())
        if any(episode.question_id not in done for episode in self._tried()):
            write_episodes(self.episodes, (e for e in self._tried() if e.question_id in done))
        return set(done)

    def append(
        self, outcome: Outcome, latency: float, seconds: float, plain_seconds: tuple[float | None, ...] = ()
    ) -> None:
        """Write the episodes first, then the line that makes them count."""
        self._append(Cost.of(outcome, latency, seconds, plain_seconds), outcome.tried)

    def take_in(self, other: OutcomeLog) -> None:
        """Add what another log of this system has of questions that are not answered here."""
        done, tried = self.open(), other.candidates()
        for name, cost in other._costs().items():
            if name in tried and name not in done:
                self._append(cost, tried[name])

    def _append(self, cost: Cost, tried: Sequence[Episode]) -> None:
        append_episodes(self.episodes, tried)
        append(self.outcomes, json.dumps(asdict(cost)).encode() + b"\n")

    def results(self) -> dict[str, Result]:
        """The result of each answered question, by its id."""
        costs, seen, results = self._costs(), Counter[str](), dict[str, Result]()
        for episode in self._tried():
            cost = costs.get(episode.question_id)
            if cost and cost.chosen == seen[episode.question_id]:
                results[episode.question_id] = Result(episode, cost)
            seen[episode.question_id] += 1
        for name, cost in costs.items():
            if seen[name] != cost.tried:
                raise UserError(
                    f"{self.episodes} has {seen[name]} of the {cost.tried} episodes of question {name}; "
                    f"delete it and {self.outcomes} to play this system again"
                )
        return results

    def candidates(self) -> dict[str, list[Episode]]:
        """All episodes of each answered question, in the order they were tried."""
        tried: dict[str, list[Episode]] = {name: [] for name in self.results()}
        for episode in self._tried():
            if episode.question_id in tried:
                tried[episode.question_id].append(episode)
        return tried

    def plain_samples(self) -> Iterator[tuple[Episode, float]]:
        """The plain samples of the answered questions, with the seconds that each took."""
        costs, seen = self._costs(), Counter[str]()
        for episode in self._tried():
            cost, place = costs.get(episode.question_id), seen[episode.question_id]
            seen[episode.question_id] += 1
            seconds = cost.plain_seconds[place] if cost and place < len(cost.plain_seconds) else None
            if seconds is not None:
                yield episode, seconds

    def _tried(self) -> Iterator[Episode]:
        return read_episodes(self.episodes) if self.episodes.exists() else iter(())

    def _costs(self) -> dict[str, Cost]:
        """The lines of outcomes/, without a torn last one."""
        costs: dict[str, Cost] = {}
        lines = self.outcomes.read_bytes().splitlines(keepends=True) if self.outcomes.exists() else []
        for number, line in enumerate(lines, 1):
            if line.endswith(b"\n"):
                cost = self._cost(line, number)
                costs[cost.question_id] = cost
        return costs

    def _cost(self, line: bytes, number: int) -> Cost:
        try:
            row: dict[str, Any] = json.loads(line)
            return Cost(**{**row, "plain_seconds": tuple(row.get("plain_seconds", ()))})
        except (ValueError, TypeError) as error:
            raise UserError(f"{self.outcomes}:{number}: not an outcome ({error}); delete that line") from error
