"""Session: questions in, answers out, until the reader has had enough."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from forage.agent.agent import Agent, BatchedSearch, Speak, searched_for
from forage.agent.builder import Found
from forage.agent.episode import Episode
from forage.agent.options import AGENT_FILE, AgentSettings, SearchOptions
from forage.agent.protocol import Protocol
from forage.agent.tools import functions_for
from forage.chat.endpoint import Endpoint
from forage.chat.options import ChatOptions
from forage.chat.view import LiveTrace, Trace, answer_seen, in_line, ranks_of, ranks_seen, side_by_side, whole
from forage.data.records import Question
from forage.engines.choice import open_engine
from forage.errors import UserError
from forage.evaluation.policies import Policy, find_policy, load_adapter
from forage.policy.base_models import PACKAGED_MODEL, resolve_model
from forage.policy.card import PolicyCard
from forage.policy.policy import load_tokenizer
from forage.store.card import NO_EMBEDDER
from forage.store.opening import Store, open_place
from forage.store.options import Mode
from forage.text import encodable

# An endpoint's model reads more than a small policy in training.
ENDPOINT = AgentSettings(max_turns=8, max_turn_tokens=1024, max_tokens=16384, passage_tokens=200)


@dataclass(frozen=True)
class Player:
    """Somebody who answers questions, and what was seen of the last one."""

    name: str
    agent: Agent
    trace: Trace
    seed: int
    speak: Speak | None = None

    async def play(self, question: Question) -> Episode:
        """Play one question; raises UserError if the engine failed."""
        self.trace.clear()
        episode = await self.agent.play(question, 0, self.seed, self.speak)
        if episode.stop == "engine":
            raise UserError(f"{self.name}: {episode.cause}; see that the server runs, and ask again")
        return episode


@asynccontextmanager
async def open_policy(source: str, options: ChatOptions, store: Store, trace: Trace) -> AsyncIterator[Player]:
    """A policy that plays as its agent.json says; a plain model, which has none, with the defaults."""
    policy = find_policy(Path(source).name, source, "")
    settings = settled(options.search, policy.folder, store)
    protocol = Protocol.playing(load_tokenizer(policy.card), settings)
    async with open_engine(options.engine, policy.card, 1, settings.max_tokens) as engine:
        await load_adapter(engine, policy)
        search, tools = searching(store, settings), functions_for(settings.tools)
        agent = Agent(engine, protocol, search, settings, options.sampling, trace, tools)
        yield Player(called(policy), agent, trace, options.seed)


@asynccontextmanager
async def open_endpoint(options: ChatOptions, store: Store, trace: Trace) -> AsyncIterator[Player]:
    """A model behind an OpenAI-compatible address."""
    base = resolve_model(PACKAGED_MODEL)
    settings = for_endpoint(options.search, store)
    card = PolicyCard(Path(base), base, base, quantized=False)
    protocol = Protocol.playing(load_tokenizer(card), settings)
    patience, timeout = options.engine.patience, options.engine.timeout
    async with Endpoint(
        options.base_url, options.model, protocol, options.sampling, patience=patience, timeout=timeout
    ) as endpoint:
        search, tools = searching(store, settings), functions_for(settings.tools)
        agent = Agent(endpoint, protocol, search, settings, options.sampling, trace, tools)
        yield Player(options.model, agent, trace, options.seed, endpoint.speak)


def settled(search: SearchOptions, folder: Path, store: Store) -> AgentSettings:
    """The policy's settings; where nothing says the mode, the one that the store can search by."""
    if search.mode is None and not (folder / AGENT_FILE).is_file():
        search = replace(search, mode=best_mode(store))
    return search.settle(folder)


def for_endpoint(search: SearchOptions, store: Store) -> AgentSettings:
    """The endpoint's limits, with what was given on the command line. It begins its own first turn."""
    if search.force_search:
        raise UserError("--force-search begins a turn token by token, which --base-url can't; leave it out")
    roomy = {
        name: getattr(ENDPOINT, name)
        for name in ("max_turns", "max_turn_tokens", "max_tokens", "passage_tokens")
        if getattr(search, name) is None
    }
    return replace(search, mode=search.mode or best_mode(store), **roomy).settle()


def best_mode(store: Store) -> Mode:
    return "sparse" if store.options.embedder == NO_EMBEDDER else "hybrid"


def searching(store: Store, settings: AgentSettings) -> BatchedSearch:
    def search(queries: Sequence[str]) -> Sequence[Sequence[Found]]:
        return store.search(queries, settings.k, settings.mode, fusion=settings.fusion)

    return BatchedSearch(search, in_line=True)  # nothing else is played meanwhile


def called(policy: Policy) -> str:
    """Example: runs/a v000010, or models/merged."""
    return f"{policy.folder} {policy.version}" if policy.adapter else str(policy.folder)


HELP = """Type a question. Each one stands alone: nothing is remembered of those before it.
/why    where each ranking of the store has the passages of the last question's searches
/help   this
/quit   leave, as do Ctrl-D and Ctrl-C"""


class Session:
    """One chat. The event loop runs only while a question is played, so that Ctrl-C at the prompt is a plain one."""

    def __init__(self, options: ChatOptions, console: Console, stdin: TextIO) -> None:
        self.options, self.console, self.stdin = options, console, stdin
        self.store = open_place(options.place, options.searched, labels=False)
        self.players: list[Player] = []
        self.last: Question | None = None

    def run(self) -> None:
        """Open whom to ask, and ask until there is no more question."""
        with asyncio.Runner() as runner:
            stack = AsyncExitStack()
            try:
                runner.run(self._open(stack))
                if self.options.question is not None:
                    self._ask(runner, self.options.question)
                else:
                    self._talk(runner)
            finally:
                runner.run(stack.aclose())

    async def _open(self, stack: AsyncExitStack) -> None:
        if self.options.base_url:
            self.players.append(await stack.enter_async_context(open_endpoint(self.options, self.store, self._trace())))
        for source in self.options.sources:
            trace = self._trace()
            player = await stack.enter_async_context(open_policy(source, self.options, self.store, trace))
            if isinstance(trace, LiveTrace):
                trace.protocol = player.agent.protocol
            self.players.append(player)

    def _trace(self) -> Trace:
        """Two answers side by side are shown when both are there; one, while it comes."""
        return Trace() if len(self.options.sources) > 1 else LiveTrace(self.console)

    def _talk(self, runner: asyncio.Runner) -> None:
        asked = 0
        for line in self._lines():
            match line:
                case "":
                    continue
                case "/quit":
                    return
                case "/help":
                    self.console.print(Text(HELP))
                case "/why":
                    self._why()
                case _ if line.startswith("/"):
                    self.console.print(in_line(f"{line} is no command; /help shows them", "yellow"))
                case _:
                    self._ask(runner, line)
                    asked += 1
        if not asked and not self.stdin.isatty():
            raise UserError('no question came on standard input; pipe in one a line, or give --question "..."')

    def _lines(self) -> Iterator[str]:
        """Lines without blanks around them. In a terminal with a prompt, and the arrow keys where there is readline."""
        if not self.stdin.isatty():
            for line in self.stdin:
                if line.strip():
                    self.console.print(Text.assemble(("> ", "bold"), in_line(line)))
                yield line.strip()
            return
        self.console.print(
            Text(f"{self.store.card.chunks or 'the'} passages in {self.store.path}; /help shows the commands")
        )
        with contextlib.suppress(ImportError):  # some builds of Python have none
            import readline  # noqa: F401 input() uses it
        while True:
            try:
                yield input("> ").strip()
            except EOFError:
                self.console.print()
                return

    def _ask(self, runner: asyncio.Runner, text: str) -> None:
        self.last = question = Question("chat", encodable(text), "")
        episodes: list[Episode] = [runner.run(player.play(question)) for player in self.players]
        if len(self.players) == 1:
            self.console.print(answer_seen(episodes[0], self.players[0].trace))
            return
        parts = [
            (player.name, whole(episode, player.trace)) for player, episode in zip(self.players, episodes, strict=True)
        ]
        self.console.print(side_by_side(parts, self.console.width))

    def _why(self) -> None:
        """The ranks of what the last question's searches showed."""
        if self.last is None:
            self.console.print(Text("nothing was asked yet", style="yellow"))
            return
        for player in self.players:
            if len(self.players) > 1:
                self.console.print(in_line(player.name, "bold magenta"))
            settings = player.agent.settings
            if not player.trace.searches:
                self.console.print(Text("it did not search", style="yellow"))
            for number, search in enumerate(player.trace.searches, 1):
                searched = searched_for(self.last, search.query, settings.question_weight)
                ids = [hit.chunk_id for hit in search.hits]
                ranks = ranks_of(self.store, settings, searched, search.query, ids)
                self.console.print(ranks_seen(number, ranks, search.hits, settings.mode))


def talk(options: ChatOptions) -> None:
    """Open a session on this process's terminal."""
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")
    Session(options, Console(highlight=False), sys.stdin).run()
