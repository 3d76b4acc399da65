"""Outcome: what a system answered to one question, and what that cost; and the log that keeps outcomes on disk."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from forage.agent.agent import Agent
from forage.agent.episode import Episode, append_episodes, read_episodes
from forage.data.records import Question
from forage.errors import UserError
from forage.files import append

# Beside the episodes, what a line of outcomes/ holds of an outcome.
KEPT = ("extra_sampled", "extra_read", "extra_searches", "extra_turns", "seconds")


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
    seconds: float = 0.0
    """From question to answer, while other questions were played too."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens the policy wrote."""
        return sum(episode.sampled for episode in self.tried) + self.extra_sampled

    @property
    def read_tokens(self) -> int:
        """Tokens the policy was given: each episode's prompt and results."""
        return sum(episode.length - episode.sampled for episode in self.tried) + self.extra_read

    @property
    def searches(self) -> int:
        return sum(len(episode.searches) for episode in self.tried) + self.extra_searches

    @property
    def turns(self) -> int:
        """The policy's turns in episodes; what it wrote outside of them only counts as tokens."""
        return sum(len(episode.turns) for episode in self.tried) + self.extra_turns


# A way of answering: plain sampling, a baseline, a test-time strategy. The integer is the seed.
Strategy = Callable[[Agent, Question, int], Awaitable[Outcome]]


@dataclass(frozen=True)
class OutcomeLog:
    """The log of one system in an output folder, of which each process writes a file of its own."""

    folder: Path
    name: str
    """The policy's and the system's names, as in warm/best_of:8."""

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
        return {name for path in self._files() for name in self._rows(path)}

    def append(self, file: str, outcome: Outcome) -> None:
        """Write the episodes first, then the line that makes them count, into this process's own files.

        What a killed process left half-written is so never gone on with.
        """
        row = {"question_id": outcome.episode.question_id, "chosen": outcome.tried.index(outcome.episode)}
        row |= {"tried": len(outcome.tried)} | {name: getattr(outcome, name) for name in KEPT}
        append_episodes(self.episodes / file, outcome.tried)
        append(self.outcomes / file, json.dumps(row).encode() + b"\n")

    def results(self) -> dict[str, Outcome]:
        """The outcome of each answered question, by its id: the first where two processes answered it."""
        found: dict[str, Outcome] = {}
        for path in self._files():
            rows, episodes = self._rows(path), self.episodes / path.name
            given = read_episodes(episodes) if rows and episodes.exists() else ()
            for name, group in groupby(given, lambda episode: episode.question_id):
                tried, row = tuple(group), rows.get(name)
                if row and len(tried) == row["tried"] and name not in found:
                    found[name] = Outcome(tried[row["chosen"]], tried, *(row[name] for name in KEPT))
            if lost := rows.keys() - found.keys():
                raise UserError(
                    f"{episodes} lacks episodes of question {min(lost)}; delete it and {path} to play what they held "
                    "again"
                )
        return found

    def _files(self) -> list[Path]:
        return sorted(self.outcomes.glob("*.jsonl"))

    def _rows(self, path: Path) -> dict[str, dict[str, Any]]:
        """The lines of a file of outcomes by question, without a torn last one."""
        rows = {}
        for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
            try:
                if line.endswith(b"\n"):
                    row = json.loads(line)
                    rows[row["question_id"]] = {name: row[name] for name in ("chosen", "tried", *KEPT)}
            except (ValueError, TypeError, KeyError) as error:
                raise UserError(f"{path}:{number}: not an outcome ({error}); delete that line") from error
        return rows
