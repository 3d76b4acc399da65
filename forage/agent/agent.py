"""Agent: plays episodes. Generate until a call or an answer, run the search, append its result as tokens, go on.

Every episode is a coroutine at its own turn: none waits for another's tool call, engines batch what is generated at the
same time, and the searches that wait at the same time are answered as one batch.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar
from typing import Protocol as Interface

from forage.agent.episode import Episode, Search, Stop, Turn
from forage.agent.options import Limits
from forage.agent.protocol import CALL_FAULTS, NO_ACTION, NO_ACTION_TEXT, Call, Passage, Protocol, Reading, read_turn
from forage.data.records import Question
from forage.engines.base import Engine, EngineError, Request, Sample, Sampling


class Found(Interface):
    """A hit of a search, as DocumentStore gives it."""

    @property
    def chunk_id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def text(self) -> str: ...


T = TypeVar("T")
SearchMany = Callable[[Sequence[str]], Sequence[Sequence[Found]]]


class BatchedSearch:
    """Answers the queries that wait together as one batch.

    In a thread, so that episodes go on meanwhile; or, where sampling needs the same cores, in line: then what is
    sampled together never depends on how long a search took, and equal seeds give equal episodes to the last bit.
    """

    def __init__(self, search_many: SearchMany, *, in_line: bool = False) -> None:
        self.search_many, self.in_line = search_many, in_line
        self._one_at_a_time = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "search")  # always the same, for what libraries keep by thread
        self._open: tuple[list[str], asyncio.Task[Sequence[Sequence[Found]]]] | None = None

    async def __call__(self, query: str) -> Sequence[Found]:
        if self._open is None:
            queries: list[str] = []
            self._open = queries, asyncio.create_task(self._answer(queries))
        queries, answers = self._open
        queries.append(query)
        place = len(queries) - 1
        return (await asyncio.shield(answers))[place]

    async def _answer(self, queries: list[str]) -> Sequence[Sequence[Found]]:
        async with self._one_at_a_time:  # while one batch is searched, the next one fills
            await asyncio.sleep(0)
            self._open = None
            return await self.in_thread(self.search_many, queries)

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something where searches run: what uses the same embedder must not run beside one."""
        if self.in_line:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


@dataclass(frozen=True, slots=True)
class Said:
    """A turn's tokens; of mask 0 are those that were put into the policy's mouth."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length"]


# Says an episode's next turn, of at most so many tokens, by a seed.
Speak = Callable[["Growing", int, int], Awaitable[Said]]


@dataclass(frozen=True)
class Agent:
    """A policy with a search tool."""

    engine: Engine
    protocol: Protocol
    search: BatchedSearch
    limits: Limits = field(default_factory=Limits)
    sampling: Sampling = field(default_factory=Sampling)
    question_weight: int = 0
    """How often the question stands before the policy's query in what is searched for; 0: the query alone."""

    async def play(
        self, question: Question, sample: int = 0, seed: int = 0, speak: Speak | None = None, asked: str = ""
    ) -> Episode:
        """One episode; equal seeds and samples draw equal tokens. The policy may be `asked` more than the question."""
        episode = self.begin(question, f"{question.id}/{sample}", asked)
        while not episode.stop:
            await self.step(episode, seed, speak)
        return self.finish(episode)

    def begin(self, question: Question, name: str, asked: str = "") -> Growing:
        """An episode before its first turn."""
        return Growing(name, question, self.protocol.prompt(asked or question.question), self.engine.adapter)

    async def step(self, episode: Growing, seed: int, speak: Speak | None = None) -> None:
        """One turn: what the policy says and what its calls are answered. The last one sets `stop`."""
        number = len(episode.turns)
        room = min(self.limits.max_turn_tokens, self.limits.max_tokens - len(episode.ids))
        if room < 1:
            episode.stop = "tokens"
            return
        try:
            said = await (speak or self.speak)(episode, room, turn_seed(seed, episode.id, number))
        except EngineError as error:
            episode.cause, episode.stop = str(error), "engine"
            return
        reading = self.read(said.ids)
        episode.add_said(said, reading)
        if said.finish == "length":
            episode.stop = "turn_tokens" if room == self.limits.max_turn_tokens else "tokens"
        elif reading.answer is not None:
            episode.stop = "answer"
        elif number + 1 == self.limits.max_turns:  # nobody would read a result
            episode.stop = "turns"
        elif not reading.calls and number and NO_ACTION in episode.turns[-2].faults:  # it was told so in vain
            episode.stop = "no_action"
        else:
            given = self.protocol.join(await self._results(reading, episode), said.ids[-1])
            if len(episode.ids) + len(given) >= self.limits.max_tokens:
                episode.stop = "tokens"
                episode.forget_hits(number)  # the policy never saw them
            else:
                episode.add_given(given)

    def finish(self, episode: Growing) -> Episode:
        """What came of it; the engine need hold it no longer."""
        self.engine.release(episode.id)
        return episode.finished(self.protocol)

    async def speak(self, episode: Growing, room: int, seed: int) -> Said:
        """A turn as the policy says it."""
        sampled = await self.sample(episode, (), room, seed)
        return Said(sampled.ids, (1,) * len(sampled.ids), sampled.logprobs, sampled.finish)

    async def sample(self, episode: Growing, begun: Sequence[int], room: int, seed: int) -> Sample:
        """What the policy goes on with after the episode and the tokens that its turn has `begun` with."""
        started = time.perf_counter()
        ids, stop_ids = (*episode.ids, *begun), self.protocol.stop_ids
        sampled = await self.engine.generate(Request(ids, room, stop_ids, seed, self.sampling, episode.id))
        episode.seconds["generate"] += time.perf_counter() - started
        return sampled

    def read(self, ids: Sequence[int], opening: str = "") -> Reading:
        """What a turn says that the policy went on with after an opening it was given."""
        text = opening + self.protocol.text(ids)
        reading = read_turn(text, max_calls=self.limits.max_calls, max_query=self.limits.max_query)
        if self.protocol.forges(ids):
            return Reading(reading.calls, reading.answer, (*reading.faults, "control_token"))
        return reading

    async def _results(self, reading: Reading, episode: Growing) -> list[str]:
        """What the tool says to each call; a call that can't be run gets the reason."""
        if not reading.calls:
            return [f"error: {NO_ACTION_TEXT}"]
        started = time.perf_counter()
        results = await asyncio.gather(*(self._result(call, episode) for call in reading.calls))
        episode.seconds["search"] += time.perf_counter() - started
        return list(results)

    async def _result(self, call: Call, episode: Growing) -> str:
        if call.fault:
            return f"error: {CALL_FAULTS[call.fault]}"
        number = episode.reserve_search(call.query)
        hits = await self.search(searched_for(episode.question, call.query, self.question_weight))
        episode.fill_search(number, hits)
        return self.protocol.show(Passage(hit.title, hit.text) for hit in hits)


def searched_for(question: Question, query: str, question_weight: int) -> str:
    """A query behind the question, which BM25 counts as often as it is said.

    Example: question "gout?", query "sore toe", weight 2: "gout? gout? sore toe".
    """
    return " ".join([question.question] * question_weight + [query])


def turn_seed(seed: int, episode: str, turn: int) -> int:
    """A seed of its own for every turn, the same in every process."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{episode}/{turn}".encode(), digest_size=6).digest(), "big")


@dataclass
class Growing:
    """An episode in the making; `stop` is empty until it is over."""

    id: str
    question: Question
    prompt: list[int]
    adapter: str
    stop: Stop | Literal[""] = ""
    turns: list[Turn] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    answer: str = ""
    cause: str = ""
    seconds: dict[str, float] = field(default_factory=lambda: {"generate": 0.0, "search": 0.0})
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.ids, self.mask, self.logprobs = list(self.prompt), [0] * len(self.prompt), [0.0] * len(self.prompt)

    def fork(self, name: str) -> Growing:
        """Another one that goes on from here."""
        other = copy.deepcopy(self)
        other.id = name
        return other

    def add_said(self, said: Said, reading: Reading) -> None:
        self.turns.append(Turn(len(self.ids), len(self.ids) + len(said.ids), reading.faults))
        self.ids += said.ids
        self.mask += said.mask
        self.logprobs += said.logprobs
        self.answer = reading.answer or ""

    def add_given(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)

    def reserve_search(self, query: str) -> int:
        """Searches stand in the order of the calls, whichever comes back first."""
        self.searches.append(Search(len(self.turns) - 1, query))
        return len(self.searches) - 1

    def fill_search(self, number: int, hits: Iterable[Found]) -> None:
        search = self.searches[number]
        self.searches[number] = Search(search.turn, search.query, tuple(hit.chunk_id for hit in hits))

    def forget_hits(self, turn: int) -> None:
        """Of the searches of a turn."""
        self.searches = [replace(search, hits=()) if search.turn == turn else search for search in self.searches]

    def finished(self, protocol: Protocol) -> Episode:
        if not self.stop:
            raise ValueError(f"episode {self.id} is not over")
        seconds = {**self.seconds, "total": time.perf_counter() - self.started}
        return Episode(
            id=self.id, question_id=self.question.id, ids=tuple(self.ids), mask=tuple(self.mask),
            logprobs=tuple(self.logprobs), turns=tuple(self.turns), searches=tuple(self.searches), answer=self.answer,
            stop=self.stop, cause=self.cause, adapter=self.adapter, transcript=protocol.tokenizer.decode(self.ids),
            seconds=seconds,
        )  # fmt: skip
