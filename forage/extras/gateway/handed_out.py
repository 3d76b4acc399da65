"""Episodes handed out to agents that run on their own, in any process or container: each comes for one, plays it at
its address, and says what came of it.

POST /v1/episodes       gives {"id", "question_id", "question", "base_url"}; status 429 while none is waiting
POST <base_url>/end     takes {"answer": "...", "reward": 0.5}, or {"cause": "why it failed"}
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from openai import AsyncOpenAI
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from forage.errors import UserError
from forage.extras.gateway.chat_api import Refused
from forage.extras.gateway.own_agent import SECONDS, Recorded, Tools
from forage.extras.gateway.recording import OVER, Ended
from forage.extras.gateway.server import HOST
from forage.extras.serving.server import body_of, check_key
from forage.machine import is_loopback

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
            offer.ended.set_result(Ended.model_validate_json(content))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise Refused(f"{'.'.join(map(str, first['loc'])) or 'the request'}: {first['msg']}") from error
        return JSONResponse({})
