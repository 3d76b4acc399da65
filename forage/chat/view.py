"""View: what was seen of an episode, on the terminal.

All text goes through `shown`: markup stays letters, and no control character is sent. Where stdout is no terminal, rich
writes plain lines; nothing here redraws a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forage.agent.builder import EpisodeBuilder, Found, Observer
from forage.agent.episode import STOPS, Episode, Use
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol, Reading
from forage.store.bm25 import Tokenizer
from forage.store.card import NO_EMBEDDER
from forage.store.hit import Hit
from forage.store.opening import Store
from forage.store.options import Mode
from forage.text import one_line, printable, titled

WIDE = 100  # columns from which two answers stand side by side
BEGINNING = 300  # characters of a passage that are laid out, of which a line shows what fits
ENOUGH = 0.5  # of the answer's words; fewer are common to many passages of a library
MODES = {"dense": "dense", "sparse": "BM25", "hybrid": "fused"}


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


@dataclass(frozen=True)
class Used:
    """A passage and the share of the answer's words that it holds."""

    hit: Hit
    share: float


def used_passages(answer: str, hits: Sequence[Hit]) -> list[Used]:
    """The passages that hold at least half of the answer's words, most first. No model says what it used: words do.

    Words are compared by their stems, without stop words. Example: "Rest and ice." has two; a passage that speaks of
    ice alone holds .5 of them.
    """
    tokenize = Tokenizer()
    words = set(tokenize(answer))
    if not words:
        return []
    shares = [Used(hit, len(words & set(tokenize(f"{hit.title} {hit.text}"))) / len(words)) for hit in hits]
    return sorted((used for used in shares if used.share >= ENOUGH), key=lambda used: -used.share)


@dataclass(frozen=True)
class Ranks:
    """Where one search has each of some passages: by mode, a rank from 1, or None beyond `depth`."""

    query: str
    depth: int
    by_mode: dict[Mode, tuple[int | None, ...]]


def modes_of(store: Store) -> tuple[Mode, ...]:
    """The rankings that the store has: without vectors, only that by words."""
    return ("sparse",) if store.options.embedder == NO_EMBEDDER else ("dense", "sparse", "hybrid")


def ranks_of(store: Store, settings: AgentSettings, searched: str, query: str, chunk_ids: Sequence[str]) -> Ranks:
    """The ranks of the chunks for what was searched, which may be more than the query: the question comes first."""
    depth = max(settings.fusion.depth, settings.k)
    by_mode = {}
    for mode in modes_of(store):
        [hits] = store.search([searched], depth, mode, fusion=settings.fusion)
        by_mode[mode] = places(hits, chunk_ids)
    return Ranks(query, depth, by_mode)


def places(hits: Sequence[Hit], chunk_ids: Sequence[str]) -> tuple[int | None, ...]:
    """Example: hits of chunks b and a, asked for a, b and c, give (2, 1, None)."""
    rank = {hit.chunk_id: place for place, hit in enumerate(hits, 1)}
    return tuple(rank.get(name) for name in chunk_ids)


def shown(text: str, style: str = "") -> Text:
    """Text from anywhere as text: "[bold]" is six letters, ESC is \\x1b, and lines stay lines."""
    return Text(printable(text.expandtabs(4)), style=style)


def in_line(text: str, style: str = "") -> Text:
    """The same on one line."""
    return Text(one_line(" ".join(text.split())), style=style)


def search_seen(number: int, search: SearchSeen) -> RenderableType:
    """A search with its hits: rank, title and beginning, score."""
    heading = Text.assemble((f"search {number}: ", "bold cyan"), in_line(search.query))
    if not search.hits:
        return Group(heading, Padding(Text("nothing found"), (0, 0, 0, 2)))
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(justify="right", width=3)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    for hit in search.hits:
        table.add_row(str(hit.rank), beginning(hit), f"{hit.score:.3f}")
    return Group(heading, table)


def use_seen(use: Use) -> RenderableType:
    """A call of another tool, and its answer."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in use.arguments.items())
    return Group(in_line(f"{use.tool}({arguments})", "bold cyan"), Padding(shown(use.result), (0, 0, 0, 2)))


def beginning(hit: Hit) -> Text:
    return in_line(titled(hit.title, hit.text)[:BEGINNING])


def answer_seen(episode: Episode, trace: Trace) -> RenderableType:
    """The answer with the passages that hold its words, or why there is none."""
    if episode.stop == "search":
        return Text("this policy only searches (--max-turns 1)", style="yellow")
    if episode.stop != "answer":
        return Text(f"no answer: {STOPS[episode.stop]}", style="yellow")
    parts: list[RenderableType] = [Text("answer", style="bold green"), Padding(shown(episode.answer), (0, 0, 0, 2))]
    if not trace.searches:
        parts.append(Text("it did not search", style="yellow"))
        return Group(*parts)
    used = used_passages(episode.answer, trace.hits)
    if not used:
        parts.append(Text("no passage that was found holds half of the answer's words", style="yellow"))
        return Group(*parts)
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(justify="right", width=5)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for one in used:
        table.add_row(f"{one.share:.0%}", beginning(one.hit))
    return Group(*parts, Text("passages that hold the answer's words", style="bold cyan"), table)


def ranks_seen(number: int, ranks: Ranks, hits: Sequence[Hit], mode: str) -> RenderableType:
    """Where each ranking has each passage; the one that the agent searches by has a star."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    for _ in ranks.by_mode:
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", *(MODES[name] + ("*" if name == mode else "") for name in ranks.by_mode), style="bold")
    for place, hit in enumerate(hits):
        columns = (ranked[place] for ranked in ranks.by_mode.values())
        table.add_row(beginning(hit), *(str(rank) if rank else f">{ranks.depth}" for rank in columns))
    return Group(Text.assemble((f"search {number}: ", "bold cyan"), in_line(ranks.query)), Padding(table, (0, 0, 0, 2)))


def side_by_side(parts: Sequence[tuple[str, RenderableType]], width: int) -> RenderableType:
    """Columns where there is room for them, else one below the other; each under its name."""
    named = [Group(in_line(name, "bold magenta"), part) for name, part in parts]
    if width < WIDE:
        return Group(*named)
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in named:
        table.add_column(ratio=1)
    table.add_row(*named)
    return table


def whole(episode: Episode, trace: Trace) -> RenderableType:
    """All of an episode at once, for two beside each other."""
    searches = [search_seen(number, search) for number, search in enumerate(trace.searches, 1)]
    faults = [Text(f"refused: {fault}", style="yellow") for fault in trace.faults]
    uses = [use_seen(use) for use in trace.uses]
    return Group(*searches, *uses, *faults, answer_seen(episode, trace))


class LiveTrace(Trace):
    """Shows an episode's searches as they come and, on a terminal, its tokens."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self.protocol: Protocol | None = None
        self._ids: list[int] = []
        self._told = ""

    def sampled(self, episode: EpisodeBuilder, token: int) -> None:
        if self.protocol is None or not self.console.is_terminal:
            return
        self._ids.append(token)
        text = self.protocol.text(self._ids)
        if text.endswith("\ufffd") or not text.startswith(self._told):  # half of a letter: the rest comes
            return
        self.console.print(shown(text[len(self._told) :], "dim"), end="", soft_wrap=True)
        self._told = text

    def turned(self, episode: EpisodeBuilder, text: str, reading: Any) -> None:
        super().turned(episode, text, reading)
        if self._told and not self._told.endswith("\n"):
            self.console.print()
        self._ids, self._told = [], ""
        for call in reading.calls:
            if call.fault:
                self.console.print(Text(f"refused: {self.faults[-1]}", style="yellow"))

    def found(self, episode: EpisodeBuilder, query: str, hits: Sequence[Found]) -> None:
        super().found(episode, query, hits)
        self.console.print(search_seen(len(self.searches), self.searches[-1]))

    def used(self, episode: EpisodeBuilder, use: Use) -> None:
        super().used(episode, use)
        self.console.print(use_seen(use))
