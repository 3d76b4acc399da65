"""A store over HTTP, with Search-R1's /retrieve request and response, so that its clients work with it.

Request: {"queries": ["..."], "topk": 3, "return_scores": true}. Response: {"result": [[{"document": {"id": "...",
"doc_id": "...", "title": "...", "contents": "title\\ntext"}, "score": 0.5}, ...], ...]}; without scores, each item is
the document itself. Search-R1's has no doc_id, and no title but the first line of the contents. RemoteStore asks beyond
it: requests may say "mode", "fusion" and "where", and /manifest tells what is served.

Here is also what every server of this project has in common: who may ask (`guarded`), how much (`body_of`), and for how
long (`Connection`).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import resource
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import uvicorn
from pydantic import Field, StrictBool
from uvicorn.protocols.http.h11_impl import H11Protocol

from forage.errors import UserError
from forage.machine import is_here, is_loopback
from forage.store.fusion import Hit
from forage.store.options import KEY, TOO_MUCH, Fusion, Mode
from forage.text import from_json, typed

if TYPE_CHECKING:
    from forage.store.document_store import DocumentStore

PATIENCE = 60  # seconds that a client may take for its request, for reading the reply, and until it asks again
CLOSING = 3  # seconds that open connections get when the server is stopped
# That this process may have open: one more ends it. RLIM_INFINITY is -1.
FILES = min(most for most in (*resource.getrlimit(resource.RLIMIT_NOFILE), 1024) if most > 0)
MOST = FILES // 2  # connections
BACKLOG = FILES // 16  # connections that are accepted at once, before any other is closed
MAX_BODY = 8 * 2**20
MAX_HITS = 1000  # for a query
MAX_READ = 100  # for a call of an MCP client, whose model reads them all
MAX_PASSAGES = 10_000  # in a reply: one search at a time, so that no request may take the server for itself
MAX_QUERY = 10_000  # characters
MAX_TEXT = 16 * 2**20  # characters in a reply
JSON = b"application/json; charset=utf-8"
ROUTES = "POST /retrieve, GET /manifest or GET /health"


Search = Callable[[Sequence[str], int], Sequence[Sequence[Hit]]]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class BadRequest(Exception):
    """A request that is refused; answered with this message and status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


# Any server


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
            if self.conn.trailing_data[0]:  # no client of ours sends more before the reply
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


def guarded(app: App, bound: str, key: str = "") -> App:
    """The app, for those who may ask, before it looks at what they ask; /health is for all who may know of it.

    On a loopback address, nobody may who calls this machine by another name, or comes from another one's page: a web
    page can't ask in its reader's browser by having its own name resolved to this machine. With a `key`, only who bears
    it may.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                check_host(scope, bound)
                if key and scope["path"] != "/health":
                    check_key(header(scope, b"authorization"), key, KEY)
            await app(scope, receive, send)
        except BadRequest as error:
            await answer(send, error.status, {"detail": str(error)})

    return checked


def check_host(scope: Scope, bound: str) -> None:
    named = [(name, value.decode("latin-1")) for name, value in scope["headers"] if name in (b"host", b"origin")]
    if is_loopback(bound) and not all(is_here(f"//{value}" if name == b"host" else value) for name, value in named):
        raise BadRequest("this server answers its own machine alone; call it localhost or 127.0.0.1", 403)


def header(scope: Scope, wanted: bytes) -> str:
    """Its first value; empty where there is none."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")


def check_key(authorization: str, key: str, name: str) -> None:
    if not hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode()):
        raise BadRequest(f"this server wants a key; set {name} to it", 401)


async def body_of(scope: Scope, receive: Receive) -> bytes:
    """The body of a request, which is refused once it says that it is too long, or is."""
    length, content, more = header(scope, b"content-length"), bytearray(), True
    while more:
        if max(len(content), int(length or 0)) > MAX_BODY:
            raise BadRequest(f"the request is longer than {MAX_BODY} bytes", TOO_MUCH)
        part = await receive()
        if part["type"] == "http.disconnect":
            raise BadRequest("the client hung up")
        content += part.get("body", b"")
        more = part.get("more_body", False)
    return bytes(content)


async def answer(send: Send, status: int, said: Mapping[str, Any] | bytes, kind: bytes = JSON) -> None:
    body = said if isinstance(said, bytes) else json.dumps(said, ensure_ascii=False).encode()
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def listening(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """A socket that listens; port 0 is any free one."""
    if not 0 <= port < 2**16:
        raise UserError(f"port {port} must be from 0 to {2**16 - 1}")
    try:
        return socket.create_server((host, port), backlog=backlog)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0]  # Python adds the address in brackets
        raise UserError(f"can't listen on {host}:{port} ({why}); choose another port") from error


def server_of(app: App) -> uvicorn.Server:
    """It answers once it is run with a socket that listens, until it is stopped."""
    limits: dict[str, Any] = {"timeout_keep_alive": PATIENCE, "timeout_graceful_shutdown": CLOSING, "backlog": BACKLOG}
    return uvicorn.Server(
        uvicorn.Config(app, loop="asyncio", http=Connection, ws="none", log_level="warning", **limits)
    )


# A store's


@dataclass(frozen=True)
class Asked:
    """A request to /retrieve."""

    queries: list[Annotated[str, Field(max_length=MAX_QUERY)]]
    topk: Annotated[int, Field(ge=1, le=MAX_HITS, strict=True)] | None = None
    return_scores: StrictBool | None = None
    mode: Mode | None = None
    fusion: Fusion | None = None
    where: Any = None


def make_app(
    search: Callable[..., Sequence[Sequence[Hit]]], host: str = "127.0.0.1", k: int = 3,
    served: Callable[[], DocumentStore] | None = None, key: str = "",
) -> App:  # fmt: skip
    """What answers /retrieve with `search`, and /health, at this host.

    `k` is the number of hits for a request that doesn't set topk. Where it can ask what is `served`, it does
    before each search, /manifest says so, and `search` is given the mode, the fusion and the where of requests that
    have them, as keywords. With a `key`, only requests that bear it are answered. One search at a time uses all cores.
    """
    thread = ThreadPoolExecutor(1, "search")

    def manifest(_: bytes) -> dict[str, Any]:
        assert served
        store = served()
        # Where the vectors are kept is nobody's business.
        told = replace(store.manifest, options=replace(store.options, chroma_url=""))
        return asdict(told) | {"chunks_digest": store.chunks_digest}

    def retrieve(body: bytes) -> dict[str, Any]:
        asked = read_request(body)
        wanted = asked.topk or k
        if len(asked.queries) * wanted > MAX_PASSAGES:
            raise BadRequest(
                f"{len(asked.queries)} queries with topk {wanted} are over {MAX_PASSAGES} passages", TOO_MUCH
            )
        how = {name: value for name in ("mode", "fusion", "where") if (value := getattr(asked, name)) is not None}
        marked = {"store": served().fingerprint} if served else {}
        hits = search(asked.queries, wanted, **(how if served else {}))
        if (size := sum(len(hit.title) + len(hit.text) for row in hits for hit in row)) > MAX_TEXT:
            raise BadRequest(f"{size} characters were found, over {MAX_TEXT}; ask for fewer passages", TOO_MUCH)
        return {"result": [[_document(hit, asked.return_scores) for hit in row] for row in hits], **marked}

    routes = {("POST", "/retrieve"): retrieve} | ({("GET", "/manifest"): manifest} if served else {})

    def answered(route: Callable[[bytes], dict[str, Any]], body: bytes) -> bytes:
        try:
            return json.dumps(route(body), ensure_ascii=False).encode()
        except UserError as error:
            raise BadRequest(str(error)) from error

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["method"], scope["path"]
        body: bytes | dict[str, str] = {"status": "ok"}
        if asked in routes:
            content = await body_of(scope, receive)
            body = await asyncio.get_running_loop().run_in_executor(thread, answered, routes[asked], content)
        elif asked != ("GET", "/health"):
            raise BadRequest(ROUTES, 404)
        await answer(send, 200, body)

    return guarded(app, host, key)


def read_request(body: bytes) -> Asked:
    try:
        asked = typed(Asked, from_json(body), "ignore")
        if asked.fusion:
            asked.fusion.check()
            if asked.fusion.depth > MAX_HITS:
                raise ValueError(f"fusion.depth: {asked.fusion.depth} is over {MAX_HITS}")
        if len(json.dumps(asked.where)) > MAX_QUERY:
            raise ValueError(f"where: over {MAX_QUERY} characters")
    except (ValueError, UserError) as error:
        raise BadRequest(f"the request can't be read: {error}") from error
    return asked


def _document(hit: Hit, with_scores: bool | None) -> dict[str, Any]:
    title = " ".join(hit.title.split())  # clients read the first line as the title
    contents = f"{title}\n{hit.text}"
    document = {"id": hit.chunk_id, "doc_id": hit.doc_id, "title": hit.title, "contents": contents}
    return {"document": document, "score": hit.score} if with_scores else document
