"""Session: questions in, answers out, until the reader has had enough."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.text import Text

from forage.agent.agent import Agent, BatchedSearch, searched_for
from forage.agent.episode import Episode
from forage.agent.options import AGENT_FILE, AgentSettings, SearchOptions
from forage.agent.protocol import Protocol
from forage.agent.searcher import searching
from forage.agent.tools import functions_for
from forage.data.records import Question
from forage.engines.base import Job
from forage.engines.choice import open_engine
from forage.errors import UserError
from forage.evaluation.setting import find_policy, load_adapter
from forage.extras.chat.options import ChatOptions
from forage.extras.chat.view import View, in_line
from forage.policy.policy import load_tokenizer
from forage.runs.stats import data_of
from forage.store.manifest import NO_EMBEDDER
from forage.store.opening import Store, open_address
from forage.store.options import Mode
from forage.text import encodable

DEPTH = 100  # ranks that /why looks at


def talk(options: ChatOptions) -> None:
    """Ask on this process's terminal until there is no more question.

    The event loop runs only while a question is played, so that Ctrl-C at the prompt is a plain one.
    """
    console = Console(highlight=False)
    named = options.data or data_of(Path(options.policy))  # what it learnt from, if that is on this machine
    store = open_address(options.address, named if named and (options.data or named.is_dir()) else Path("data"))
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            agent, view = runner.run(open_agent(options, store, console, stack))
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
    return lines or ["it did not search"]


async def open_agent(options: ChatOptions, store: Store, console: Console, stack: AsyncExitStack) -> tuple[Agent, View]:
    """Who answers, and what shows it."""
    policy = find_policy("chat", options.policy, "")
    settings = settled(options.search, policy.folder, store)
    protocol = Protocol.playing(load_tokenizer(policy.manifest), settings)
    engine = await stack.enter_async_context(open_engine(options.engine, Job(policy.manifest, 1, settings.max_tokens)))
    await load_adapter(engine, policy)
    view, tools = View(console, protocol), functions_for(settings.tools)
    in_this_thread = BatchedSearch(searching(store, settings), in_line=True)  # nothing else is played meanwhile
    return Agent(engine, protocol, in_this_thread, settings, options.sampling, view, tools), view


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
        console.print(Text(f"{store.manifest.chunks or 'the'} passages in {store.path}; Ctrl-D leaves"))
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
