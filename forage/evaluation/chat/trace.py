"""Trace: what was seen of an episode while it was played, with the hits' texts and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from forage.agent.builder import EpisodeBuilder, Found, Observer
from forage.agent.episode import Use
from forage.agent.protocol import Reading
from forage.store.hit import Hit


@dataclass(frozen=True)
class SearchSeen:
    """A search and what it found, best first."""

    query: str
    hits: tuple[Hit, ...]


@dataclass
class Trace(Observer):
    """Keeps an episode's searches and other calls in the order of their answers, and what went wrong with its calls."""

    searches: list[SearchSeen] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def turned(self, episode: EpisodeBuilder, text: str, reading: Reading) -> None:
        self.faults += [call.explanation for call in reading.calls if call.fault]

    def found(self, episode: EpisodeBuilder, query: str, hits: Sequence[Found]) -> None:
        # The store's own hits: a chat searches nothing else.
        self.searches.append(SearchSeen(query, tuple(cast("Sequence[Hit]", hits))))

    def used(self, episode: EpisodeBuilder, use: Use) -> None:
        self.uses.append(use)

    def clear(self) -> None:
        self.searches, self.uses, self.faults = [], [], []

    @property
    def hits(self) -> tuple[Hit, ...]:
        """Everything that was found, in the order in which it was shown, without repeats."""
        by_id = {hit.chunk_id: hit for search in reversed(self.searches) for hit in reversed(search.hits)}
        order = dict.fromkeys(hit.chunk_id for search in self.searches for hit in search.hits)
        return tuple(by_id[name] for name in order)
