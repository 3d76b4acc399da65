"""Agent: plays episodes. Generate up to a call or an answer, run the search, append its result as tokens, repeat.

Every episode is a coroutine: none waits for another's tool call, engines batch what is generated at the same time, and
searches that are waiting at the same time are answered as one batch.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar

from forage.agent.episode import Episode, Search, Stop, Turn, Use
from forage.agent.options import AgentSettings
from forage.agent.protocol import NO_ACTION, NO_ACTION_TEXT, Call, Protocol, Reading, read_turn, write_call
from forage.agent.tools import ToolError, ToolFunction
from forage.data.records import Question
from forage.engines.base import Engine, EngineError, Request, Sampling
from forage.errors import UserError
from forage.store.fusion import Hit


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

    def found(self, episode: EpisodeBuilder, query: str, hits: Sequence[Hit]) -> None:
        """A search is answered."""

    def used(self, episode: EpisodeBuilder, use: Use) -> None:
        """Another tool has answered."""


T = TypeVar("T")
SearchMany = Callable[[Sequence[str]], Sequence[Sequence[Hit]]]


class BatchedSearch:
    """Answers all queries that are waiting at the same time as one batch.

    Searches run in a thread while episodes continue, or in line if sampling needs the same cores. In line, which
    requests are sampled together never depends on how long a search takes, so equal seeds give bit-equal episodes.
    """

    def __init__(self, search_many: SearchMany, *, in_line: bool = False) -> None:
        self.search_many, self.in_line = search_many, in_line
        self._one_at_a_time = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "search")  # always the same thread: libraries keep state per thread
        self._open: tuple[list[str], asyncio.Task[Sequence[Sequence[Hit]]]] | None = None

    async def __call__(self, query: str) -> Sequence[Hit]:
        if self._open is None:
            queries: list[str] = []
            self._open = queries, asyncio.create_task(self._answer(queries))
        queries, answers = self._open
        queries.append(query)
        place = len(queries) - 1
        return (await asyncio.shield(answers))[place]

    async def _answer(self, queries: list[str]) -> Sequence[Sequence[Hit]]:
        async with self._one_at_a_time:  # while one batch is being searched, the next one fills
            await asyncio.sleep(0)
            self._open = None
            return await self.in_thread(self.search_many, queries)

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function where searches run: users of the same embedder must not run concurrently."""
        if self.in_line:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


# Produces an episode's next turn: (episode, maximum tokens, seed).
Speak = Callable[["EpisodeBuilder", int, int], Awaitable[TurnTokens]]
# Plays an episode: (agent, question, sample, seed).
Player = Callable[["Agent", Question, int, int], Awaitable[Episode]]


@dataclass(frozen=True)
class Agent:
    """A policy with a search tool, and others where its settings name them."""

    engine: Engine
    protocol: Protocol
    search: BatchedSearch
    settings: AgentSettings = AgentSettings()
    sampling: Sampling = Sampling()
    observer: Observer | None = None
    tools: Mapping[str, ToolFunction] = field(default_factory=dict)
    """The functions of the settings' tools."""

    async def play(
        self, question: Question, sample: int = 0, seed: int = 0, speak: Speak | None = None, asked: str = ""
    ) -> Episode:
        """Play one episode; equal seeds and samples draw equal tokens. `asked` replaces the question in the prompt."""
        episode = self.begin(question, sample_name(question, sample), asked)
        while not episode.stop:
            await self.play_turn(episode, seed, speak)
        return self.finish(episode)

    def begin(self, question: Question, name: str, asked: str = "") -> EpisodeBuilder:
        """Start an episode, before its first turn."""
        return EpisodeBuilder(name, question, self.protocol.prompt(asked or question.question), self.engine.adapter)

    async def play_turn(self, episode: EpisodeBuilder, seed: int, speak: Speak | None = None) -> None:
        """Play one turn: sample it and run its calls. The last turn sets `stop`."""
        number = len(episode.turns)
        left = self.settings.max_tokens - len(episode.ids) - len(self.begun(episode))
        room = min(self.settings.max_turn_tokens, left)
        if room < 1:
            episode.stop = "tokens"
            return
        given = self.given(episode)
        if given and len(given.ids) > left:
            episode.stop = "tokens"
            return
        try:
            turn = given or await (speak or self.speak)(episode, room, turn_seed(seed, episode.id, number))
        except EngineError as error:
            episode.cause, episode.stop = str(error), "engine"
            return
        reading = self.read(turn.ids)
        episode.add_turn(turn, reading)
        if self.observer:
            self.observer.turned(episode, self.protocol.text(turn.ids), reading)
        if turn.finish == "length":
            episode.stop = "turn_tokens" if room == self.settings.max_turn_tokens else "tokens"
        elif reading.answer is not None:
            episode.stop = "answer"
        elif number + 1 == self.settings.max_turns:
            if self.settings.search_only and reading.calls:  # nobody reads what they find, but a reward may
                results = self.protocol.join(await self._results(reading, episode), turn.ids[-1])
                if len(episode.ids) + len(results) < self.settings.max_tokens:
                    episode.add_results(results)
            searched = any(search.turn == number for search in episode.searches)
            episode.stop = "search" if searched and self.settings.search_only else "turns"
        elif not reading.calls and number and NO_ACTION in episode.turns[-2].faults:  # the second one in a row
            episode.stop = "no_action"
        else:
            results = self.protocol.join(await self._results(reading, episode), turn.ids[-1] if turn.ids else None)
            if len(episode.ids) + len(results) >= self.settings.max_tokens:
                episode.stop = "tokens"
                episode.drop_results(number)  # the policy never saw them
            else:
                episode.add_results(results)

    def finish(self, episode: EpisodeBuilder) -> Episode:
        """Return the finished episode, and let the engine free what it cached for it."""
        self.engine.release(episode.id)
        return episode.finished(self.protocol)

    async def speak(
        self, episode: EpisodeBuilder, room: int, seed: int, begun: Sequence[int] | None = None
    ) -> TurnTokens:
        """Sample a turn from the policy, or the rest of one that begins with the tokens `begun`."""
        begun = tuple(self.begun(episode) if begun is None else begun)
        on_token = partial(self.observer.sampled, episode) if self.observer else None
        request = Request(
            (*episode.ids, *begun),
            room,
            self.protocol.stop_ids,
            seed,
            self.sampling,
            episode.id,
            episode.adapter,
            on_token,
        )
        started = time.perf_counter()
        sampled = await self.engine.generate(request)
        episode.seconds["generate"] += time.perf_counter() - started
        count = len(sampled.ids)
        if count > room or count != len(sampled.logprobs):
            raise UserError(
                f"{type(self.engine).__name__} returned {count} tokens with {len(sampled.logprobs)} log-probabilities, "
                f"where at most {room} tokens were asked for"
            )
        return TurnTokens(
            (*begun, *sampled.ids), (0,) * len(begun) + (1,) * len(sampled.ids), (0.0,) * len(begun) + sampled.logprobs,
            sampled.finish, sampled.server,
        )  # fmt: skip

    def begun(self, episode: EpisodeBuilder) -> tuple[int, ...]:
        """The tokens with which the next turn is begun for the policy."""
        own_first = len(episode.turns) == self.settings.search_first
        return self.protocol.call_opening if own_first and self.settings.force_search else ()

    def given(self, episode: EpisodeBuilder) -> TurnTokens | None:
        """The turn that is written for the policy, if the next one is."""
        if episode.turns or not self.settings.search_first:
            return None
        query = " ".join(self.protocol.harmless(episode.question.question).split())[: self.settings.max_query]
        ids = tuple(self.protocol.turn_ids(write_call(query)))
        return TurnTokens(ids, (0,) * len(ids), (0.0,) * len(ids), "stop")

    def read(self, ids: Sequence[int], opening: str = "") -> Reading:
        """Read a turn: an opening that the policy was given, then the tokens it sampled."""
        reading = read_turn(
            opening + self.protocol.text(ids), max_calls=self.settings.max_calls, max_query=self.settings.max_query,
            tools=self.protocol.tools,
        )  # fmt: skip
        return replace(reading, faults=(*reading.faults, "control_token")) if self.protocol.forges(ids) else reading

    async def answer_call(self, call: Call, episode: EpisodeBuilder) -> str:
        """The tool's response to a call."""
        [result] = await self._results(Reading((call,)), episode)
        return result

    async def _results(self, reading: Reading, episode: EpisodeBuilder) -> list[str]:
        """The tool's response to each call; a call that can't be run gets the reason."""
        if not reading.calls:
            return [f"error: {NO_ACTION_TEXT}"]
        started = time.perf_counter()
        # All searches are reserved before any is waited for, so that they stay in the order of their calls.
        wanted = [await self._run(call, episode) for call in reading.calls]
        results = await asyncio.gather(*(self._shown(each, episode) for each in wanted))
        episode.seconds["search"] += time.perf_counter() - started
        return list(results)

    async def _run(self, call: Call, episode: EpisodeBuilder) -> str | list[int]:
        """What a call answers, or the numbers of the searches that answer it."""
        if call.fault:
            return f"error: {call.explanation}"
        if not call.tool:
            return [episode.reserve_search(call.query)]
        run = partial(self.tools[call.tool], **call.arguments)
        try:
            found = run() if self.search.in_line else await asyncio.to_thread(run)
        except ToolError as error:
            found = f"error: {error}"
        shown = self.protocol.shown(found, self.settings.k) if isinstance(found, str) else ""
        episode.uses.append(use := Use(len(episode.turns) - 1, call.tool, call.arguments, shown))
        if self.observer:
            self.observer.used(episode, use)
        return shown if isinstance(found, str) else [episode.reserve_search(query) for query in found]

    async def _shown(self, wanted: str | list[int], episode: EpisodeBuilder) -> str:
        """What a call's searches find, numbered in one go; a chunk that several of them find is shown once."""
        if isinstance(wanted, str):
            return wanted
        found: dict[str, Hit] = {}
        for number in wanted:
            search = episode.searches[number]
            hits = await self.search(searched_for(episode.question, search.query, self.settings.question_weight))
            episode.searches[number] = replace(search, hits=tuple(hit.chunk_id for hit in hits))
            for hit in hits:
                found.setdefault(hit.chunk_id, hit)
            if self.observer:
                self.observer.found(episode, search.query, hits)
        return self.protocol.show(found.values())


def sample_name(question: Question, sample: int) -> str:
    """The id of a question's episode."""
    return f"{question.id}/{sample}"


def searched_for(question: Question, query: str, question_weight: int) -> str:
    """The question, repeated `question_weight` times, then the query: BM25 counts repeats.

    Example: question "gout?", query "sore toe", weight 2: "gout? gout? sore toe".
    """
    return " ".join([question.question] * question_weight + [query])


def turn_seed(seed: int, episode: str, turn: int) -> int:
    """A seed for each turn, the same in every process."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{episode}/{turn}".encode(), digest_size=6).digest(), "big")
