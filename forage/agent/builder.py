"""EpisodeBuilder: an episode while it is being played."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from typing import Protocol as Interface

from forage.agent.episode import Episode, Search, Stop, Turn, Use
from forage.agent.protocol import Protocol, Reading
from forage.data.records import Question


class Found(Interface):
    """A search hit, as DocumentStore returns it."""

    @property
    def chunk_id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """A turn's tokens; mask 0 marks those that the policy was given instead of sampling them."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length"]
    server: str = ""


@dataclass
class EpisodeBuilder:
    """An episode under construction; `stop` is empty until it is over."""

    id: str
    question: Question
    prompt: list[int]
    adapter: str
    stop: Stop | Literal[""] = ""
    turns: list[Turn] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    answer: str = ""
    cause: str = ""
    server: str = ""
    seconds: dict[str, float] = field(default_factory=lambda: {"generate": 0.0, "search": 0.0})
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.ids, self.mask, self.logprobs = list(self.prompt), [0] * len(self.prompt), [0.0] * len(self.prompt)

    def fork(self, name: str) -> EpisodeBuilder:
        """A copy that continues from here."""
        other = copy.deepcopy(self)
        other.id = name
        return other

    def add_turn(self, tokens: TurnTokens, reading: Reading) -> None:
        self.turns.append(Turn(len(self.ids), len(self.ids) + len(tokens.ids), reading.faults))
        self.ids += tokens.ids
        self.mask += tokens.mask
        self.logprobs += tokens.logprobs
        self.answer = reading.answer or ""
        self.server = tokens.server

    def add_results(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def reserve_search(self, query: str) -> int:
        """Reserve a place, so that searches stay in the order of their calls, whichever returns first."""
        self.searches.append(Search(len(self.turns) - 1, query))
        return len(self.searches) - 1

    def fill_search(self, number: int, hits: Iterable[Found]) -> None:
        self.searches[number] = replace(self.searches[number], hits=tuple(hit.chunk_id for hit in hits))

    def drop_results(self, turn: int) -> None:
        """Remove what a turn's searches and other calls found."""
        self.searches = [replace(search, hits=()) if search.turn == turn else search for search in self.searches]
        self.uses = [replace(use, result="") if use.turn == turn else use for use in self.uses]

    def so_far(self, protocol: Protocol) -> Episode:
        """The episode as if no more were asked of it than its last turn's searches, as with --max-turns 1."""
        other = self.fork(self.id)
        other.stop = other.stop or "search"
        return other.finished(protocol)

    def finished(self, protocol: Protocol) -> Episode:
        if not self.stop:
            raise ValueError(f"episode {self.id} is not over")
        seconds = {**self.seconds, "total": time.perf_counter() - self.started}
        return Episode(
            id=self.id, question_id=self.question.id, ids=tuple(self.ids), mask=tuple(self.mask),
            logprobs=tuple(self.logprobs), turns=tuple(self.turns), searches=tuple(self.searches),
            uses=tuple(self.uses), answer=self.answer, stop=self.stop, cause=self.cause, adapter=self.adapter,
            transcript=protocol.tokenizer.decode(self.ids), seconds=seconds,
            server=self.server,
        )  # fmt: skip


class Observer:
    """Hears of each event and does nothing; subclasses show them. What it does changes no episode."""

    def sampled(self, episode: EpisodeBuilder, token: int) -> None:
        """The policy sampled a token, where the engine tells tokens as they come (LocalEngine does)."""

    def turned(self, episode: EpisodeBuilder, text: str, reading: Reading) -> None:
        """A turn is finished, before its calls are run; `text` is all of it."""

    def found(self, episode: EpisodeBuilder, query: str, hits: Sequence[Found]) -> None:
        """A search is answered."""

    def used(self, episode: EpisodeBuilder, use: Use) -> None:
        """Another tool has answered."""
