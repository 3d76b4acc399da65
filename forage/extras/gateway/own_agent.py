"""An agent of one's own in the place of our loop: what get_agent of grpo_rollout.py returns (docs/gateway.md).

`recorded` runs an agent in this process. `handed_out` serves agents that run on their own, in any process or container:
each comes for an episode, plays it at its address, and says what came of it.

POST /v1/episodes       gives {"id", "question_id", "question", "base_url"}; status 429 while none is waiting
POST <base_url>/end     takes {"answer": "...", "reward": 0.5}, or {"cause": "why it failed"}
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shlex
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from openai import AsyncOpenAI
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from forage.agent.agent import Agent, sample_name
from forage.agent.episode import Episode
from forage.data.records import Question
from forage.errors import UserError, first_line
from forage.extras.gateway.chat_api import Refused
from forage.extras.gateway.recording import OVER, Ended, Recorder
from forage.extras.gateway.server import HOST, Gateway
from forage.extras.serving.server import body_of, check_key
from forage.machine import is_loopback
from forage.text import from_json, one_line, say, typed

SECONDS, CANCELLED = 600.0, 5.0  # that an episode may take, and its agent once it is cancelled


@dataclass(frozen=True)
class Tools:
    """The tools of the policy's episode: search, and those of get_tools."""

    recorder: Recorder

    @property
    def definitions(self) -> list[Any]:
        """As the chat API takes them."""
        return self.recorder.protocol.described_tools

    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """What a tool answers, or, as text too, why it can't; what a search finds counts for the rewards."""
        given = arguments if isinstance(arguments, str) else json.dumps(dict(arguments))
        return await self.recorder.call(name, given)

    async def search(self, query: str) -> str:
        return await self.call("search", {"query": query})


Returned = str | None | tuple[str | None, float] | Ended  # an answer, or one with a reward that the agent gives itself
AgentFunction = Callable[[str, AsyncOpenAI, Tools], Awaitable[Returned]]
Opened = dict[asyncio.AbstractEventLoop, tuple[Gateway, AsyncOpenAI, asyncio.Task[None]]]


@dataclass
class Recorded:
    """Plays an agent's episodes: each has a client of its own, whose every request becomes the episode's tokens."""

    agent: AgentFunction
    seconds: float = field(default=SECONDS, compare=False)
    """One that takes longer has failed."""
    at: tuple[str, int] = field(default=(HOST, 0), compare=False)
    """Host and port to listen on; 0 is any that is free."""
    routes: Sequence[Route] = field(default=(), compare=False)
    """What is served beside the episodes."""
    _opened: Opened = field(default_factory=dict, repr=False, compare=False)
    _told: set[str] = field(default_factory=set, repr=False, compare=False)

    async def __call__(self, policy: Agent, question: Question, sample: int, seed: int) -> Episode:
        gateway, client = self.opened()
        recorder = Recorder(policy, question, sample_name(question, sample), seed)
        with gateway.serving(recorder) as address:
            asked = self.asked(question.question, client.with_options(base_url=address), Tools(recorder))
            ended = await outcome(asyncio.ensure_future(asked), self.seconds)
        if recorder.error:
            raise recorder.error
        if ended.cause and ended.cause not in self._told:
            say(f"{recorder.book.id}: the agent failed: {ended.cause}")
            self._told.add(ended.cause)
        return await recorder.finished(ended)

    async def asked(self, *arguments: Any) -> Returned:
        """So that whatever goes wrong with a call of the agent goes wrong in here."""
        return await self.agent(*arguments)

    def opened(self) -> tuple[Gateway, AsyncOpenAI]:
        """A server in this event loop, which ends with it."""
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            gateway = Gateway(self.at, self.routes)
            if self.routes:
                print(f"episodes wait for agents at {gateway.url}/v1/episodes", flush=True)
            client = AsyncOpenAI(api_key="none", base_url=gateway.url, max_retries=0, timeout=None)
            self._opened[loop] = gateway, client, asyncio.create_task(serve(gateway, client))
        gateway, client, _ = self._opened[loop]
        return gateway, client


recorded = Recorded  # as users write it


async def serve(gateway: Gateway, client: AsyncOpenAI) -> None:
    """Until the event loop ends, which cancels this."""
    async with client:
        await gateway.serve()


async def outcome(asked: asyncio.Future[Returned], seconds: float) -> Ended:
    """What came of an agent: whatever it raises, the other episodes go on."""
    try:
        await asyncio.wait([asked], timeout=seconds)
    finally:
        if not asked.done():
            asked.cancel()
            await asyncio.wait([asked], timeout=CANCELLED)
    if not asked.done() or asked.cancelled():
        return Ended(cause=f"it took longer than {seconds:g} s")
    if error := asked.exception():
        return Ended(cause=f"{type(error).__name__}: {first_line(error)}")
    return read_outcome(asked.result())


def read_outcome(returned: Returned) -> Ended:
    """Example: ("Rest.", 0.5) is the answer "Rest." with a reward of .5."""
    if isinstance(returned, Ended):
        return returned
    try:
        answer, reward = returned if isinstance(returned, tuple) else (returned, None)
        return Ended(answer="" if answer is None else answer, reward=reward)
    except ValueError:
        shown = one_line(repr(returned)[:60])
        return Ended(cause=f"it returned {shown}, and not an answer, or one with a reward from 0 to 1")


def command(line: str) -> AgentFunction:
    """An agent in any language: a program that is run for each episode. Example: command("node agent.js").

    The question is on its standard input; OPENAI_BASE_URL is where it asks the policy, as model "policy", and searches
    (POST $OPENAI_BASE_URL/search). Its standard output is the answer.
    """

    async def run(question: str, client: AsyncOpenAI, tools: Tools) -> str:
        environment = os.environ | {"OPENAI_BASE_URL": str(client.base_url), "OPENAI_API_KEY": "none"}
        program = await asyncio.create_subprocess_exec(
            *shlex.split(line), stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True
        )
        try:
            said, complaint = await program.communicate(question.encode())
        finally:
            with suppress(ProcessLookupError):  # what it started may be left
                os.killpg(program.pid, 9)
            await program.wait()
        if program.returncode:
            lines = complaint.decode(errors="replace").strip().splitlines()
            raise UserError(f"{line} ended with {program.returncode}: {lines[-1] if lines else 'it said nothing'}")
        return said.decode(errors="replace").strip()

    return run


# Agents that come for episodes


KEY = "GATEWAY_API_KEY"  # in the environment of the rollout, and as a bearer token of whoever comes for an episode
PORT = 8200
NOTICED = 0.02  # seconds until a closed connection is seen
TOLD = 60.0  # seconds that nobody comes, until that is said


def handed_out(port: int = PORT, host: str = HOST, seconds: float = SECONDS) -> Recorded:
    """Episodes are played by whoever comes for them. One that was taken and not ended for so long has failed."""
    if not is_loopback(host) and not os.environ.get(KEY):
        raise UserError(f"handed_out({host=}) lets other machines play; set {KEY} to a key that they have to send")
    desk = Desk(seconds)
    routes = (Route("/v1/episodes", desk.take, methods=["POST"]), Route("/{key}/v1/end", desk.end, methods=["POST"]))
    return Recorded(desk, math.inf, (host, port), routes)  # the desk's seconds begin when an episode is taken


@dataclass(frozen=True, eq=False)
class Offer:
    """An episode that somebody may take."""

    tools: Tools
    path: str
    """The path of its address."""
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Future[Ended] = field(default_factory=asyncio.Future)


@dataclass
class Desk:
    """Where episodes wait for agents: in the place of an agent of ours."""

    seconds: float = field(compare=False)
    waiting: deque[Offer] = field(default_factory=deque, compare=False)
    out: dict[str, Offer] = field(default_factory=dict, compare=False)

    async def __call__(self, question: str, client: AsyncOpenAI, tools: Tools) -> Ended:
        offer = Offer(tools, urlsplit(str(client.base_url)).path.rstrip("/"))
        self.waiting.append(offer)
        self.out[offer.path] = offer
        try:
            while not offer.taken.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(offer.taken.wait(), TOLD)
                if self.waiting and self.waiting[0] is offer:
                    print(f"episodes wait for agents to come for them: {len(self.waiting)}", flush=True)
            return await asyncio.wait_for(offer.ended, self.seconds)
        except TimeoutError:
            return Ended(cause=f"it was taken, and not ended for {self.seconds:g} s")
        finally:
            del self.out[offer.path]
            if not offer.taken.is_set():
                self.waiting.remove(offer)

    async def take(self, request: Request) -> JSONResponse:
        if key := os.environ.get(KEY):
            check_key(request.headers.get("authorization", ""), key, KEY)
        # While a step is learnt from, requests wait unseen. Some of their clients have left since: let that be noticed.
        await body_of(request.scope, request.receive)
        await asyncio.sleep(NOTICED)
        if await request.is_disconnected():
            raise Refused("the client hung up")
        if not self.waiting:
            raise Refused("no episode is waiting; come again", 429)
        offer = self.waiting.popleft()
        offer.taken.set()
        book = offer.tools.recorder.book
        address = f"{str(request.base_url).rstrip('/')}{offer.path}"
        told = {"id": book.id, "question_id": book.question.id, "question": book.question.question}
        return JSONResponse(told | {"base_url": address})

    async def end(self, request: Request) -> JSONResponse:
        content = await body_of(request.scope, request.receive)
        offer = self.out.get(request.url.path.removesuffix("/end"))
        if offer is None or offer.ended.done():
            raise Refused(OVER, 404)
        try:
            offer.ended.set_result(typed(Ended, from_json(content), "ignore"))
        except ValueError as error:
            raise Refused(str(error)) from error
        return JSONResponse({})
