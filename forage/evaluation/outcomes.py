"""Outcome: what a system answered to one question, and what that cost; and the log that keeps outcomes on disk."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from forage.agent.agent import Agent
from forage.agent.episode import Episode, append_episodes, read_episodes
from forage.data.records import Question
from forage.errors import UserError
from forage.files import append


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
    """Seconds since the previous answer; over all questions they add up to the time of the processes that played."""
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
    """The log of one system in an output folder, of which each process writes a file of its own."""

    folder: Path
    name: str
    """Of the policy and of the system, as in warm/best_of:8."""

    @property
    def filed(self) -> str:
        """The name in paths, where a colon may mean a machine."""
        return self.name.replace(":", "_")

    @property
    def episodes(self) -> Path:
        return self.folder / "episodes" / self.filed

    @property
    def outcomes(self) -> Path:
        return self.folder / "outcomes" / self.filed

    def done(self) -> set[str]:
        """Ids of the answered questions."""
        return {name for path in self._files() for name in self._costs(path)}

    def append(self, file: str, cost: Cost, tried: Sequence[Episode]) -> None:
        """Write the episodes first, then the line that makes them count, into this process's own files.

        What a killed process left half-written is so never gone on with.
        """
        append_episodes(self.episodes / file, tried)
        append(self.outcomes / file, json.dumps(asdict(cost)).encode() + b"\n")

    def results(self) -> dict[str, Result]:
        """The result of each answered question, by its id."""
        return {cost.question_id: Result(tried[cost.chosen], cost) for cost, tried in self._answered()}

    def candidates(self) -> dict[str, list[Episode]]:
        """All episodes of each answered question, in the order they were tried."""
        return {cost.question_id: tried for cost, tried in self._answered()}

    def plain_samples(self) -> Iterator[tuple[Episode, float]]:
        """The plain samples of the answered questions, with the seconds that each took."""
        for cost, tried in self._answered():
            for episode, seconds in zip(tried, cost.plain_seconds, strict=False):
                if seconds is not None:
                    yield episode, seconds

    def _answered(self) -> Iterator[tuple[Cost, list[Episode]]]:
        """Each answered question once: two processes answer one if the first was taken for dead."""
        seen: set[str] = set()
        for path in self._files():
            costs, episodes = self._costs(path), self.episodes / path.name
            groups = groupby(read_episodes(episodes) if costs and episodes.exists() else (), lambda e: e.question_id)
            for name, group in groups:
                tried = list(group)
                if name in costs and len(tried) == costs[name].tried:
                    if name not in seen:
                        yield costs[name], tried
                    seen.add(name)
                    del costs[name]
            if costs:
                raise UserError(
                    f"{episodes} lacks episodes of question {next(iter(costs))}; delete it and {path} to play what "
                    "they held again"
                )

    def _files(self) -> list[Path]:
        return sorted(self.outcomes.glob("*.jsonl"))

    def _costs(self, path: Path) -> dict[str, Cost]:
        """The lines of a file of outcomes, without a torn last one."""
        lines = enumerate(path.read_bytes().splitlines(keepends=True), 1)
        costs = (self._cost(path, line, number) for number, line in lines if line.endswith(b"\n"))
        return {cost.question_id: cost for cost in costs}

    def _cost(self, path: Path, line: bytes, number: int) -> Cost:
        try:
            row: dict[str, Any] = json.loads(line)
            return Cost(**{**row, "plain_seconds": tuple(row["plain_seconds"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}:{number}: not an outcome ({error}); delete that line") from error
