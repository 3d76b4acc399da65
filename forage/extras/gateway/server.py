"""The gateway's server: an address of its own for each episode, on this machine alone.

POST <address>/chat/completions    as OpenAI's
GET  <address>/models
POST <address>/search              {"query": "..."} gives {"text": "..."}, as our own loop's policy reads it
POST <address>/mcp                 search and the tools of get_tools, for clients of the Model Context Protocol
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from forage.extras.gateway.chat_api import MODEL, Refused, completion, events, read_chat
from forage.extras.gateway.recording import OVER, Recorder
from forage.extras.serving.mcp_server import CHECKED
from forage.extras.serving.server import BadRequest, body_of, guarded, listening

Asked = ServerRequestContext[Any, Request]
HOST = "127.0.0.1"
MOST_WAITING = 2048  # requests at once; more are asked to come again
RETRY_AFTER = "1"
KEPT = 600  # seconds that a connection stays open: clients may think as long between two requests


class Gateway:
    """The episodes that are being played, each behind an address that nobody can guess, which is its key."""

    def __init__(self, at: tuple[str, int] = (HOST, 0), more: Sequence[Route] = ()) -> None:
        self._listening = listening(*at, MOST_WAITING)
        self.url = f"http://{at[0]}:{self._listening.getsockname()[1]}"
        self.waiting = 0
        self._recorders: dict[str, Recorder] = {}
        self._mcp = Server("forage", on_list_tools=self.list_tools, on_call_tool=self.call_tool)
        routes = [
            Route("/{key}/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/{key}/v1/models", self.models),
            Route("/{key}/v1/search", self.search, methods=["POST"]),
            *self._mcp.streamable_http_app(
                streamable_http_path="/{key}/v1/mcp",
                json_response=True,
                stateless_http=True,
                transport_security=CHECKED,
            ).routes,
            *more,
        ]
        self._app = guarded(Starlette(routes=routes, exception_handlers={BadRequest: refusal, 404: unknown}), at[0])
        self._server = QuietServer(
            uvicorn.Config(
                self.until_ended,
                interface="asgi3",
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                timeout_keep_alive=KEPT,
            )
        )

    async def serve(self) -> None:
        """In this event loop, until it is cancelled."""
        async with self._mcp.session_manager.run():
            try:
                await self._server.serve([self._listening])
            finally:
                state = self._server.server_state
                if state.tasks:  # which are cancelled too, and tell their clients
                    await asyncio.wait(state.tasks, timeout=1)
                for connection in list(state.connections):
                    connection.transport.close()

    async def until_ended(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app; to whoever is waiting when the event loop ends, it says so."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            await refusal(Request(scope), Refused("the run has ended", 503))(scope, receive, send)

    @contextmanager
    def serving(self, recorder: Recorder) -> Iterator[str]:
        """The address of an episode, while it is played."""
        key = secrets.token_urlsafe()
        self._recorders[key] = recorder
        try:
            yield f"{self.url}/{key}/v1"
        finally:
            del self._recorders[key]

    def recorder_of(self, request: Request) -> Recorder:
        recorder = self._recorders.get(request.path_params["key"])
        if recorder is None:
            raise Refused(OVER, 404)
        return recorder

    async def chat(self, request: Request) -> Response:
        recorder = self.recorder_of(request)
        if self.waiting >= MOST_WAITING:
            raise Refused(f"{MOST_WAITING} requests are waiting; come again", 429)
        self.waiting += 1
        try:
            chat = read_chat(await body_of(request.scope, request.receive), recorder.agent.sampling)
            again = request.headers.get("x-stainless-retry-count", "0") != "0"  # what OpenAI's clients count
            answered = await recorder.reply(chat, request.is_disconnected, again=again)
        finally:
            self.waiting -= 1
        if chat.stream:
            return StreamingResponse(events(answered, usage=chat.usage), media_type="text/event-stream")
        return JSONResponse(completion(answered))

    async def models(self, request: Request) -> Response:
        adapter = self.recorder_of(request).book.adapter
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": adapter}
        return JSONResponse({"object": "list", "data": [model]})

    async def search(self, request: Request) -> Response:
        recorder = self.recorder_of(request)
        arguments = (await body_of(request.scope, request.receive)).decode(errors="replace")
        return JSONResponse({"text": await recorder.call("search", arguments)})

    def asked_of(self, asked: Asked) -> Recorder:
        """The recorder, with errors as clients of that protocol are told them."""
        assert asked.request
        try:
            return self.recorder_of(asked.request)
        except Refused as error:
            raise MCPError(INVALID_REQUEST, str(error)) from error

    async def list_tools(self, asked: Asked, _: PaginatedRequestParams | None) -> ListToolsResult:
        described = [tool["function"] for tool in self.asked_of(asked).protocol.described_tools]
        tools = [Tool(name=t["name"], description=t["description"], input_schema=t["parameters"]) for t in described]
        return ListToolsResult(tools=tools)

    async def call_tool(self, asked: Asked, call: CallToolRequestParams) -> CallToolResult:
        text = await self.asked_of(asked).call(call.name, json.dumps(call.arguments or {}))
        return CallToolResult(content=[TextContent(text=text)], is_error=text.startswith("error: "))


class QuietServer(uvicorn.Server):
    """Leaves signals to the script that it runs in."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, BadRequest)
    headers = {"Retry-After": RETRY_AFTER} if error.status == 429 else {}
    kind, code = "server_error" if error.status >= 500 else "invalid_request_error", getattr(error, "code", "") or None
    told = {"message": str(error), "type": kind, "code": code, "param": None}
    return JSONResponse({"error": told}, error.status, headers)


def unknown(request: Request, _: Exception) -> Response:
    return refusal(request, Refused(f"{request.url.path} is not served here; ask /chat/completions", 404))
