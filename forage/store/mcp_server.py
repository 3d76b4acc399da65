"""A store as a tool of MCP clients: one tool, `search`, over standard input and output or over HTTP.

https://modelcontextprotocol.io. What was found is returned twice, as clients differ in what they read: as text with
numbered passages, and as structured content, {"hits": [{"rank": 1, "title": ..., "text": ..., "chunk_id": ...,
"doc_id": ..., "score": ...}]}. A call that can't be run is answered with what is wrong, which the model reads.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from forage.store.hit import Hit
from forage.store.server import MAX_QUERY, MAX_READ, PATIENCE, BadRequest, Search, check_key
from forage.text import encodable, titled

PATH = "/mcp"
# That this process may have open: one more ends it. RLIM_INFINITY is -1.
FILES = min(most for most in (*resource.getrlimit(resource.RLIMIT_NOFILE), 1024) if most > 0)
MOST = FILES // 4  # connections
BACKLOG = FILES // 16  # connections that are accepted at once, before any other is closed
CLOSING = 3  # seconds that open connections get when the server is stopped

Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY, description="What to look for, in a few words.")]
Count = Annotated[int, Field(ge=1, le=MAX_READ, strict=True, description="Number of passages.")]


class Found(BaseModel):
    """The structured content of an answer."""

    hits: list[Hit]


def make_mcp_server(search: Search, k: int, about: str) -> MCPServer[Any]:
    """A server, not yet running, with the tool `search`; `k` is the number of hits for a call that doesn't set it.

    All searches run in one thread, as the libraries behind them keep state per thread.
    """
    server, thread, usual = MCPServer[Any]("forage", log_level="WARNING"), ThreadPoolExecutor(1, "search"), k

    async def find(query: Query, k: Count = usual) -> Annotated[CallToolResult, Found]:
        [hits] = await asyncio.get_running_loop().run_in_executor(thread, search, [encodable(query)], k)
        return result(hits)

    hints = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    server.add_tool(find, "search", "Search", f"Finds passages of {about}, the best first.", hints)
    return server


def result(hits: Sequence[Hit]) -> CallToolResult:
    """Hits as text and as structured content."""
    shown = [f"[{rank}] {' '.join(titled(hit.title, hit.text).split())}" for rank, hit in enumerate(hits, 1)]
    text = TextContent(text="\n".join(shown) or "nothing found")
    return CallToolResult(content=[text], structured_content={"hits": list(map(asdict, hits))})


def serve_stdio(server: MCPServer[Any]) -> None:
    """Speak over standard input and output until the client closes them; a signal ends it at once."""
    # A thread waits for the next line of standard input, and Python would wait for that thread.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    asyncio.run(server.run_stdio_async())


def http_app(server: MCPServer[Any], host: str, key: str = "") -> ASGIApp:
    """Without sessions, which a search doesn't need: clients survive a restart of the server."""
    app = server.streamable_http_app(streamable_http_path=PATH, json_response=True, stateless_http=True, host=host)

    async def keyed(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                check_key(Headers(scope=scope).get("authorization", ""), key)
        except BadRequest as error:
            await JSONResponse({"detail": str(error)}, error.status)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return keyed


class Connection(H11Protocol):
    """uvicorn's, which bounds neither the time that a client takes nor the requests that it sends ahead."""

    overdue: asyncio.TimerHandle  # cancelled while a search runs

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.allow_patience()
        if len(self.connections) > MOST:
            every = [each for each in self.connections if isinstance(each, Connection)]
            waiting = [each for each in every if not each.overdue.cancelled()]
            longest = min(waiting, key=lambda each: each.overdue.when())
            longest.overdue.cancel()
            longest.transport.abort()

    def allow_patience(self) -> None:
        self.overdue = self.loop.call_later(PATIENCE, self.transport.abort)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle and not (self.cycle.more_body or self.cycle.response_complete):
            if self.conn.trailing_data[0]:  # no client of MCP sends more before the reply
                self.transport.abort()
            elif not self.flow.write_paused:  # it has read its last reply
                self.overdue.cancel()

    def on_response_complete(self) -> None:
        self.overdue.cancel()
        self.allow_patience()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.overdue.cancel()
        super().connection_lost(exc)


def left_early(record: logging.LogRecord) -> bool:
    """Whether a client left before its request was whole, which MCP's server reports as an error of its own."""
    return bool(record.exc_info) and isinstance(record.exc_info[1], ClientDisconnect)  # type: ignore[index]


def serve_http(server: MCPServer[Any], listening: socket.socket, host: str, key: str) -> None:
    """Answer until stopped."""
    app = http_app(server, host, key)
    logging.getLogger("mcp.server.streamable_http").addFilter(lambda record: not left_early(record))
    limits: dict[str, Any] = {"timeout_keep_alive": PATIENCE, "timeout_graceful_shutdown": CLOSING, "backlog": BACKLOG}
    config = uvicorn.Config(app, loop="asyncio", http=Connection, ws="none", log_level="warning", **limits)
    uvicorn.Server(config).run([listening])
