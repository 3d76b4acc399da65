"""A store as a tool of MCP clients: one tool, `search`, over standard input and output or over HTTP.

https://modelcontextprotocol.io. What was found is returned twice, as clients differ in what they read: as text with
numbered passages, and as structured content, {"hits": [{"rank": 1, "title": ..., "text": ..., "chunk_id": ...,
"doc_id": ..., "score": ...}]}. A call that can't be run is answered with what is wrong, which the model reads.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, Field
from starlette.requests import ClientDisconnect

from forage.extras.serving.server import MAX_QUERY, MAX_READ, App, Search, guarded
from forage.store.fusion import Hit
from forage.text import encodable, titled

PATH = "/mcp"
CHECKED = TransportSecuritySettings(enable_dns_rebinding_protection=False)  # by `guarded`, for any loopback address

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


def http_app(server: MCPServer[Any], host: str, key: str = "") -> App:
    """Without sessions, which a search doesn't need: clients survive a restart of the server."""
    # Where a client left before its request was whole, MCP's server reports an error of its own.
    logging.getLogger("mcp.server.streamable_http").addFilter(
        lambda record: not (record.exc_info and isinstance(record.exc_info[1], ClientDisconnect))
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, transport_security=CHECKED
    )
    return guarded(app, host, key)
