"""Session: questions in, answers out, until the reader has had enough; and what is shown while an episode is played.

All text goes through `shown` or `in_line`: markup stays letters, and no control character is sent. Where stdout is no
terminal, rich writes plain lines; nothing here redraws a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from forage.agent.agent import Agent, BatchedSearch, EpisodeBuilder, Observer, searched_for
from forage.agent.episode import STOPS, Episode, Use
from forage.agent.options import AGENT_FILE, AgentSettings, SearchOptions
from forage.agent.protocol import Protocol, Reading
from forage.agent.searcher import searching
from forage.agent.tools import functions_for
from forage.data.records import Question
from forage.engines.base import Job
from forage.engines.choice import open_engine
from forage.errors import UserError
from forage.evaluation.setting import find_policy, load_adapter
from forage.extras.chat.options import ChatOptions
from forage.runs.stats import data_of
from forage.store.bm25 import Tokenizer
from forage.store.fusion import Hit
from forage.store.manifest import NO_EMBEDDER
from forage.store.opening import Store, open_address
from forage.store.options import Mode
from forage.text import encodable, one_line, printable, titled, words_of

BEGINNING = 300  # characters of a passage that are laid out, of which a line shows what fits
NONE_HOLDS, NO_SEARCH = "no passage that was found holds half of the answer's words", "it did not search"
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

    def found(self, episode: EpisodeBuilder, query: str, hits: Sequence[Hit]) -> None:
        self.searches += 1
        self.hits |= {hit.chunk_id: hit for hit in hits if hit.chunk_id not in self.hits}
        self.console.print(Text.assemble((f"search {self.searches}: ", "bold cyan"), in_line(query)))
        if hits:
            self.console.print(listed((str(hit.rank), hit, f"{hit.score:.3f}") for hit in hits))
        else:
            self.console.print(indented(Text("nothing found")))

    def used(self, episode: EpisodeBuilder, use: Use) -> None:
        arguments = ", ".join(f"{name}={value!r}" for name, value in use.arguments.items())
        self.console.print(in_line(f"{use.tool}({arguments})", "bold cyan"))
        self.console.print(indented(shown(use.result)))

    def finished(self, episode: Episode) -> None:
        """The answer with the passages that hold its words and the words that none holds, or why there is none."""
        if episode.stop == "answer":
            holding, notes = support(episode.answer, list(self.hits.values()), searched=bool(self.searches))
            self.console.print(Text("answer", style="bold green"))
            self.console.print(indented(shown(episode.answer)))
            if holding:
                told = "share of the answer's words in a passage (even all of them don't make it right)"
                self.console.print(Text(told, style="bold cyan"))
                self.console.print(listed((f"{share:.0%}", hit, "") for hit, share in holding))
            for note in notes:
                self.console.print(in_line(note, "yellow"))
        else:
            self.console.print(Text(f"no answer: {STOPS[episode.stop]}", style="yellow"))
        self.searches, self.hits = 0, {}


def support(answer: str, hits: Sequence[Hit], *, searched: bool) -> tuple[list[tuple[Hit, float]], list[str]]:
    """The passages that hold the answer's words, each with their share; and the doubts that the rest of them raise."""
    holding = passages_with(answer, hits)
    notes = [] if holding else [NONE_HOLDS if searched else NO_SEARCH]
    if hits and (missing := words_in_none(answer, hits)):
        notes.append(f"in no passage that was found: {', '.join(missing)}")
    return holding, notes


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


# Session

DEPTH = 100  # ranks that /why looks at


def talk(options: ChatOptions) -> None:
    """Ask on this process's terminal until there is no more question.

    The event loop runs only while a question is played, so that Ctrl-C at the prompt is a plain one.
    """
    console = Console(highlight=False)
    store = store_of(options)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            agent = runner.run(open_agent(options, store, stack))
            view = View(console, agent.protocol)
            agent = replace(agent, observer=view)
            played: tuple[Question, Episode] | None = None
            for text in questions(options.question, store, console):
                if text == "/why":
                    for line in why(store, agent.settings, *played) if played else ["nothing was asked yet"]:
                        console.print(in_line(line))
                    continue
                question = Question("chat", encodable(text), "")
                episode = runner.run(agent.play(question, 0, options.seed))
                if episode.stop == "engine":
                    raise UserError(f"{episode.cause}; see that the server runs, and ask again")
                view.finished(episode)
                played = question, episode
        finally:
            runner.run(stack.aclose())


def why(store: Store, settings: AgentSettings, question: Question, episode: Episode) -> list[str]:
    """Where each ranking of the store has the passages that an episode's searches showed.

    Example: 'gout diet' found d3#0 (dense 1, sparse 4, hybrid 2).
    """
    modes: tuple[Mode, ...] = ("sparse",) if store.options.embedder == NO_EMBEDDER else ("dense", "sparse", "hybrid")
    lines = []
    for search in episode.searches:
        text = searched_for(question, search.query, settings.question_weight)
        ranks = {
            mode: {hit.chunk_id: hit.rank for hit in store.search([text], DEPTH, mode, fusion=settings.fusion)[0]}
            for mode in modes
        }
        for chunk_id in search.hits:
            places = ", ".join(f"{mode} {ranks[mode].get(chunk_id, f'beyond {DEPTH}')}" for mode in modes)
            lines.append(f"{search.query!r} found {chunk_id} ({places})")
    return lines or [NO_SEARCH]


def store_of(options: ChatOptions) -> Store:
    named = options.data or data_of(Path(options.policy))  # what it learnt from, if that is on this machine
    return open_address(options.address, named if named and (options.data or named.is_dir()) else Path("data"))


async def open_agent(options: ChatOptions, store: Store, stack: AsyncExitStack) -> Agent:
    """Who answers."""
    policy = find_policy("chat", options.policy, "")
    settings = settled(options.search, policy.folder, store)
    protocol = Protocol.of_policy(policy.manifest, settings)
    engine = await stack.enter_async_context(open_engine(options.engine, Job(policy.manifest, 1, settings.max_tokens)))
    await load_adapter(engine, policy)
    in_this_thread = BatchedSearch(searching(store, settings), in_line=True)  # sampling needs the same cores
    tools = functions_for(settings.tools)
    return Agent(engine, protocol, in_this_thread, settings, options.sampling, tools=tools)


def passages_in(store: Store) -> str:
    return f"{store.manifest.chunks or 'the'} passages in {store.path}"


def settled(search: SearchOptions, folder: Path, store: Store) -> AgentSettings:
    """As the policy's agent.json says; a plain model, which has none, by words where the store has no vectors."""
    if store.options.embedder == NO_EMBEDDER and not (folder / AGENT_FILE).is_file() and search.mode is None:
        search = replace(search, mode="sparse")
    return search.settle(folder)


def questions(given: str | None, store: Store, console: Console) -> Iterator[str]:
    """The one on the command line, else the lines of standard input, without blanks around them.

    In a terminal with a prompt, and the arrow keys where there is readline.
    """
    if given is not None:
        yield given
    elif sys.stdin.isatty():
        console.print(Text(f"{passages_in(store)}; Ctrl-D leaves"))
        with contextlib.suppress(ImportError):  # some builds of Python have none
            import readline  # noqa: F401 input() uses it
        with contextlib.suppress(EOFError):
            while True:
                if line := input("> ").strip():
                    yield line
        console.print()
    else:
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="replace")
        lines = filter(None, map(str.strip, sys.stdin))
        if not (first := next(lines, "")):
            raise UserError('no question came on standard input; pipe in one a line, or give --question "..."')
        for line in chain([first], lines):
            console.print(Text.assemble(("> ", "bold"), in_line(line)))
            yield line
