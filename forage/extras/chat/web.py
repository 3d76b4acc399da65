"""The chat in a browser: one page, which shows an episode as it is played.

POST /ask {"question": "..."} is answered by a line of JSON for each event, as it happens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forage.agent.agent import Agent, EpisodeBuilder, Observer, sample_name
from forage.agent.episode import STOPS, Episode, Use
from forage.agent.protocol import Protocol, Reading
from forage.data.records import Question
from forage.errors import UserError
from forage.extras.chat.options import ChatOptions
from forage.extras.chat.session import open_agent, passages_in, store_of, support
from forage.extras.serving.server import (
    App,
    BadRequest,
    Receive,
    Scope,
    Send,
    answer,
    body_of,
    guarded,
    listening,
    server_of,
)
from forage.store.fusion import Hit
from forage.text import encodable, from_json, printable, titled

HERE = Path(__file__).parent
HOST = "127.0.0.1"
PAGE = {
    "/": ("page.html", b"text/html; charset=utf-8"),
    "/page.js": ("page.js", b"text/javascript; charset=utf-8"),
}
Event = dict[str, Any]


@dataclass
class Events(Observer):
    """Sends the page each event of one episode."""

    protocol: Protocol
    emit: Callable[[Event], None]
    turn: int = 0
    ids: list[int] = field(default_factory=list)
    """The turn's tokens so far, where the engine tells them as they come."""
    hits: dict[str, Hit] = field(default_factory=dict)
    """Everything that was found, by id."""

    def sampled(self, episode: EpisodeBuilder, token: int) -> None:
        self.ids.append(token)
        text = self.protocol.text(self.ids)
        if not text.endswith("\ufffd"):  # half of a letter waits for the rest
            self.emit({"turn": self.turn, "text": printable(text)})

    def turned(self, episode: EpisodeBuilder, text: str, reading: Reading) -> None:
        refused = [call.explanation for call in reading.calls if call.fault]
        self.emit({"turn": self.turn, "text": printable(text), "refused": refused})
        self.turn, self.ids = self.turn + 1, []

    def found(self, episode: EpisodeBuilder, query: str, hits: Sequence[Hit]) -> None:
        self.hits |= {hit.chunk_id: hit for hit in hits if hit.chunk_id not in self.hits}
        self.emit({"search": printable(query), "passages": [passage(hit, f"{hit.rank}") for hit in hits]})

    def used(self, episode: EpisodeBuilder, use: Use) -> None:
        self.emit({"tool": printable(f"{use.tool} {json.dumps(use.arguments)}"), "result": printable(use.result)})

    def finished(self, episode: Episode) -> None:
        if episode.stop != "answer":
            self.emit({"no_answer": printable(episode.cause or STOPS[episode.stop])})
            return
        holding, notes = support(episode.answer, list(self.hits.values()), searched=bool(episode.searches))
        passages = [passage(hit, f"{share:.0%}") for hit, share in holding]
        notes = [printable(note) for note in notes]
        self.emit({"answer": printable(episode.answer), "passages": passages, "notes": notes})


def passage(hit: Hit, figure: str) -> Event:
    return {"figure": figure, "text": printable(titled(hit.title, hit.text))}


def serve(options: ChatOptions) -> None:
    """Answer whoever asks on this machine, until the process is stopped."""
    socket = listening(HOST, options.web or 0)
    store = store_of(options)

    async def serving() -> None:
        async with AsyncExitStack() as stack:
            agent = await open_agent(options, store, stack)
            where = f"http://{HOST}:{socket.getsockname()[1]}"
            print(f"{passages_in(store)}; ask at {where}, Ctrl-C leaves", flush=True)
            await server_of(make_app(agent, options.seed)).serve([socket])

    asyncio.run(serving())


def make_app(agent: Agent, seed: int) -> App:
    """The page, and the answers to what it asks, several at a time."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET" and scope["path"] in PAGE:
            name, kind = PAGE[scope["path"]]
            await answer(send, 200, (HERE / name).read_bytes(), kind)
        elif (scope["method"], scope["path"]) == ("POST", "/ask"):
            question = read_question(await body_of(scope, receive))
            await send({"type": "http.response.start", "status": 200, "headers": [(b"cache-control", b"no-store")]})
            await tell(agent, question, seed, receive, send)
        else:
            raise BadRequest("GET / or POST /ask", 404)

    return guarded(app, HOST)


def read_question(body: bytes) -> Question:
    try:
        asked = from_json(body)
    except ValueError as error:
        raise BadRequest(f"the request can't be read: {error}") from error
    text = asked.get("question") if isinstance(asked, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise BadRequest("give a question, as text")
    return Question("chat", encodable(text.strip()), "")


async def tell(agent: Agent, question: Question, seed: int, receive: Receive, send: Send) -> None:
    """Play the question, and send what happens. If the browser hangs up, playing ends."""
    happened = asyncio.Queue[Event | None]()
    events = Events(agent.protocol, happened.put_nowait)

    async def play() -> None:
        try:
            events.finished(await replace(agent, observer=events).play(question, 0, seed))
        except UserError as error:
            events.emit({"no_answer": str(error)})

    playing, gone = asyncio.ensure_future(play()), asyncio.ensure_future(receive())
    playing.add_done_callback(lambda _: happened.put_nowait(None))
    gone.add_done_callback(lambda _: playing.cancel())
    try:
        while event := await happened.get():
            await send({"type": "http.response.body", "body": json.dumps(event).encode() + b"\n", "more_body": True})
        if not playing.cancelled():
            playing.result()  # an error that nobody foresaw cuts the reply off, and the server prints it
        await send({"type": "http.response.body"})
    finally:
        gone.cancel()
        agent.engine.release(sample_name(question, 0))
