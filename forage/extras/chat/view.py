"""View: shows an episode on the terminal while it is played: its searches, on a terminal its tokens, its answer.

All text goes through `shown` or `in_line`: markup stays letters, and no control character is sent. Where stdout is no
terminal, rich writes plain lines; nothing here redraws a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forage.agent.agent import EpisodeBuilder, Found, Observer
from forage.agent.episode import STOPS, Episode, Use
from forage.agent.protocol import Protocol, Reading
from forage.store.bm25 import Tokenizer
from forage.store.fusion import Hit
from forage.text import one_line, printable, titled, words_of

BEGINNING = 300  # characters of a passage that are laid out, of which a line shows what fits
ENOUGH = 0.5  # of the answer's words; fewer are common to many passages of a library


@dataclass
class View(Observer):
    """What is shown of one episode after the other."""

    console: Console
    protocol: Protocol
    searches: int = 0
    hits: dict[str, Hit] = field(default_factory=dict)
    """Everything that was found, in the order in which it was shown, by id."""
    ids: list[int] = field(default_factory=list)
    """The turn's tokens so far, where the engine tells them as they come."""
    told: str = ""

    def sampled(self, episode: EpisodeBuilder, token: int) -> None:
        self.ids.append(token)
        text = self.protocol.text(self.ids)
        # Half of a letter waits for the rest.
        if self.console.is_terminal and not text.endswith("\ufffd") and text.startswith(self.told):
            self.console.print(shown(text[len(self.told) :], "dim"), end="", soft_wrap=True)
            self.told = text

    def turned(self, episode: EpisodeBuilder, text: str, reading: Reading) -> None:
        if self.told and not self.told.endswith("\n"):
            self.console.print()
        self.ids, self.told = [], ""
        for call in reading.calls:
            if call.fault:
                self.console.print(Text(f"refused: {call.explanation}", style="yellow"))

    def found(self, episode: EpisodeBuilder, query: str, hits: Sequence[Found]) -> None:
        found = cast("Sequence[Hit]", hits)  # the store's own: a chat searches nothing else
        self.searches += 1
        self.hits |= {hit.chunk_id: hit for hit in found if hit.chunk_id not in self.hits}
        self.console.print(Text.assemble((f"search {self.searches}: ", "bold cyan"), in_line(query)))
        if found:
            self.console.print(listed((str(hit.rank), hit, f"{hit.score:.3f}") for hit in found))
        else:
            self.console.print(indented(Text("nothing found")))

    def used(self, episode: EpisodeBuilder, use: Use) -> None:
        arguments = ", ".join(f"{name}={value!r}" for name, value in use.arguments.items())
        self.console.print(in_line(f"{use.tool}({arguments})", "bold cyan"))
        self.console.print(indented(shown(use.result)))

    def finished(self, episode: Episode) -> None:
        """The answer with the passages that hold its words and the words that none holds, or why there is none."""
        if episode.stop == "answer":
            hits = list(self.hits.values())
            self.console.print(Text("answer", style="bold green"))
            self.console.print(indented(shown(episode.answer)))
            if holding := passages_with(episode.answer, hits):
                told = "share of the answer's words in a passage (even all of them don't make it right)"
                self.console.print(Text(told, style="bold cyan"))
                self.console.print(listed((f"{share:.0%}", hit, "") for hit, share in holding))
            else:
                why = "no passage that was found holds half of the answer's words"
                self.console.print(Text(why if self.searches else "it did not search", style="yellow"))
            if hits and (missing := words_in_none(episode.answer, hits)):
                self.console.print(in_line(f"in no passage that was found: {', '.join(missing)}", "yellow"))
        else:
            self.console.print(Text(f"no answer: {STOPS[episode.stop]}", style="yellow"))
        self.searches, self.hits = 0, {}


def passages_with(answer: str, hits: Sequence[Hit]) -> list[tuple[Hit, float]]:
    """The passages that hold at least half of the answer's words, most first, each with that share.

    No model says what it used: words do. They are compared by their stems, without stop words. Example: "Rest and ice."
    has two; a passage that speaks of ice alone holds .5 of them.
    """
    tokenize = Tokenizer()
    words = set(tokenize(answer))
    shares = [(hit, len(words & set(tokenize(f"{hit.title} {hit.text}"))) / max(1, len(words))) for hit in hits]
    return sorted((pair for pair in shares if pair[1] >= ENOUGH), key=lambda pair: -pair[1])


def words_in_none(answer: str, hits: Sequence[Hit]) -> list[str]:
    """The words of an answer whose stems no passage has. Example: "Rest and pills." beside "Resting." gives pills."""
    tokenize = Tokenizer()
    held = {stem for hit in hits for stem in tokenize(f"{hit.title} {hit.text}")}
    return [word for word in dict.fromkeys(words_of(answer)) if set(tokenize(word)) - held]


def shown(text: str, style: str = "") -> Text:
    """Text from anywhere as text: "[bold]" is six letters, ESC is \\x1b, and lines stay lines."""
    return Text(printable(text.expandtabs(4)), style=style)


def in_line(text: str, style: str = "") -> Text:
    """The same on one line."""
    return Text(one_line(" ".join(text.split())), style=style)


def indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2))


def listed(rows: Iterable[tuple[str, Hit, str]]) -> Table:
    """A line for each passage: a figure, its title and beginning, another figure."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(justify="right", width=4)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    for before, hit, after in rows:
        table.add_row(before, in_line(titled(hit.title, hit.text)[:BEGINNING]), after)
    return table
