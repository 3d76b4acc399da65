"""A store over HTTP, with Search-R1's /retrieve request and response, so that its clients work with it.

Request: {"queries": ["..."], "topk": 3, "return_scores": true}. Response: {"result": [[{"document": {"id": "...",
"doc_id": "...", "title": "...", "contents": "title\\ntext"}, "score": 0.5}, ...], ...]}; without scores, each item is
the document itself. Search-R1's has no doc_id, and no title but the first line of the contents. RemoteStore asks beyond
it: requests may say "mode", "fusion" and "where", and /card tells what is served. The standard library's server is
enough: requests are whole batches, and one search at a time uses all cores anyway.
"""

from __future__ import annotations

import errno
import hmac
import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, get_args

from forage.errors import UserError
from forage.machine import is_here, is_loopback
from forage.store.card import StoreCard, fingerprint_of
from forage.store.hit import Hit
from forage.store.options import KEY, TOO_MUCH, Fusion, Mode
from forage.text import encodable, from_json

PATIENCE = 60  # seconds that a client may take for its request, for reading the reply, and until it asks again
MAX_OPEN = 512  # connections; each has a thread and a file, of which a process usually may have 1,024
MAX_BODY = 8 * 2**20
MAX_HITS = 1000  # for a query
MAX_READ = 100  # for a call of an MCP client, whose model reads them all
MAX_PASSAGES = 10_000  # in a reply: one search at a time, so that no request may take the server for itself
MAX_QUERY = 10_000  # characters
MAX_TEXT = 16 * 2**20  # characters in a reply
ROUTES = "POST /retrieve, GET /card or GET /health"


Search = Callable[[Sequence[str], int], Sequence[Sequence[Hit]]]


class BadRequest(Exception):
    """A request that is refused; answered with this message and status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Server(ThreadingHTTPServer):
    """Hangs up on clients that keep it waiting: after PATIENCE, or when another's connection needs the place."""

    request_queue_size = 1024  # connections that wait in the system to be accepted

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._closed = threading.Condition()
        self._until: dict[socket.socket, float] = {}  # of each open connection, how long its client may take
        super().__init__(address, handler)

    def allow(self, connection: socket.socket, seconds: float) -> None:
        with self._closed:
            self._until[connection] = time.monotonic() + seconds

    def service_actions(self) -> None:
        """After each connection, and twice a second."""
        with self._closed:
            for connection in [each for each, until in self._until.items() if until < time.monotonic()]:
                self._hang_up(connection)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Without a place for a connection it stays in the system's queue, and is asked for again at once."""
        try:
            if len(self._until) >= MAX_OPEN:
                raise OSError(errno.EMFILE, "too many connections")
            connection, address = super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room()
            raise
        self.allow(connection, PATIENCE)
        return connection, address

    def _make_room(self) -> None:
        """End the connection whose client may take least longer; wait for any to be closed, but not for ever."""
        with self._closed:
            if math.isfinite(min(self._until.values(), default=math.inf)):
                self._hang_up(min(self._until, key=self._until.__getitem__))
            self._closed.wait(1)

    def _hang_up(self, connection: socket.socket) -> None:
        """Its thread, which reads or writes, wakes up and closes it."""
        self._until[connection] = math.inf
        with suppress(OSError):  # the client was first
            connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._closed:
            self._until.pop(request, None)
            super().shutdown_request(request)
            self._closed.notify()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # the client is gone
            super().handle_error(request, client_address)


@dataclass(frozen=True)
class Served:
    """The store that is served, as clients are told."""

    card: StoreCard
    chunks_digest: str

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.card, self.chunks_digest)

    def described(self) -> dict[str, Any]:
        """What /card says. Where the vectors are kept is nobody's business."""
        card = replace(self.card, options=replace(self.card.options, chroma_url=""))
        return asdict(card) | {"chunks_digest": self.chunks_digest}


def make_server(
    search: Callable[..., Sequence[Sequence[Hit]]], host: str, port: int, k: int = 3,
    served: Callable[[], Served] | None = None, key: str = "",
) -> Server:  # fmt: skip
    """A server, not yet running, that answers /retrieve with `search`, and /health; port 0 picks a free one.

    `k` is the number of hits for a request that doesn't set topk. Where it can ask what is `served`, it does
    before each search, /card says so, and `search` is given the mode, the fusion and the where of requests that have
    them, as keywords. With a `key`, only requests that bear it are answered.
    """
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        server: Server
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a reply's body would wait 40 ms for the acknowledgement of its head

        def handle_one_request(self) -> None:
            self.server.allow(self.connection, PATIENCE)
            super().handle_one_request()

        def do_GET(self) -> None:
            self._reply({"/health": lambda: {"status": "ok"}} | ({"/card": self._card} if served else {}))

        def do_POST(self) -> None:
            self._reply({"/retrieve": self._retrieve})

        def _reply(self, routes: Mapping[str, Callable[[], dict[str, Any]]]) -> None:
            try:
                check_host(self.headers, host)
                if self.path != "/health":
                    check_key(self.headers.get("Authorization", ""), key)
                if self.path not in routes:
                    raise BadRequest(ROUTES, 404)
                self._answer(200, routes[self.path]())
            except BadRequest as error:
                self.close_connection = True  # the body may not have been read
                self._answer(error.status, {"detail": str(error)})
            except UserError as error:
                self._answer(400, {"detail": str(error)})

        def _card(self) -> dict[str, Any]:
            assert served
            with lock:
                return served().described()

        def _retrieve(self) -> dict[str, Any]:
            request = read_request(self._body())
            queries, wanted, with_scores = parse_request(request, k)
            how = way_of(request) if served else {}
            self.server.allow(self.connection, math.inf)  # now the client waits
            with lock:
                marked = {"store": served().fingerprint} if served else {}
                hits = search(queries, wanted, **how)
            if (size := sum(len(hit.title) + len(hit.text) for row in hits for hit in row)) > MAX_TEXT:
                raise BadRequest(f"{size} characters were found, over {MAX_TEXT}; ask for fewer passages", TOO_MUCH)
            return {"result": [[_document(hit, with_scores) for hit in row] for row in hits], **marked}

        def _body(self) -> bytes:
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MAX_BODY:
                raise BadRequest(f"send a Content-Length of at most {MAX_BODY} bytes")
            body = self.rfile.read(int(length))
            if len(body) < int(length):
                raise ConnectionResetError("the client is gone, or too slow")
            return body

        def _answer(self, status: int, answer: dict[str, Any]) -> None:
            body = json.dumps(answer, ensure_ascii=False).encode()
            self.server.allow(self.connection, PATIENCE)
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            if self.close_connection:  # or a client would send its next request into a connection that is ending
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass  # one line per search would drown a training run's log

    return Server((host, port), Handler)


def check_host(headers: Message, bound: str) -> None:
    """On a loopback address, refuse whoever calls this machine by another name, or comes from another one's page.

    So a web page can't search the store in its reader's browser by having its own name resolved to this machine.
    """
    names = [f"//{headers.get('Host', 'localhost')}", headers.get("Origin", "//localhost")]
    if is_loopback(bound) and not all(map(is_here, names)):
        raise BadRequest("this server answers its own machine alone; call it localhost or 127.0.0.1", 403)


def check_key(authorization: str, key: str, name: str = KEY) -> None:
    if key and not hmac.compare_digest(authorization.encode(), f"Bearer {key}".encode()):
        raise BadRequest(f"this server wants a key; set {name} to it", 401)


def read_request(body: bytes) -> dict[str, Any]:
    try:
        request = from_json(body)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise BadRequest("the body must be a JSON object")
    return request


def parse_request(request: Mapping[str, Any], default_k: int) -> tuple[list[str], int, bool]:
    """(queries, topk, return_scores) of a request."""
    queries, topk, with_scores = request.get("queries"), request.get("topk"), request.get("return_scores")
    topk = default_k if topk is None else topk
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise BadRequest("queries must be a list of strings")
    if not isinstance(topk, int) or isinstance(topk, bool) or not 1 <= topk <= MAX_HITS:
        raise BadRequest(f"topk must be a whole number from 1 to {MAX_HITS}")
    if len(queries) * topk > MAX_PASSAGES:
        raise BadRequest(f"{len(queries)} queries with topk {topk} are over {MAX_PASSAGES} passages", TOO_MUCH)
    if (longest := max(map(len, queries), default=0)) > MAX_QUERY:
        raise BadRequest(f"a query has {longest} characters; {MAX_QUERY} are the most")
    if not isinstance(with_scores, bool | None):
        raise BadRequest("return_scores must be true or false")
    return list(map(encodable, queries)), topk, bool(with_scores)


def way_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """The mode, the fusion and the where that a request asks for, where it does."""
    how: dict[str, Any] = {}
    if "mode" in request:
        if request["mode"] not in get_args(Mode):
            raise BadRequest(f"mode must be one of {', '.join(get_args(Mode))}")
        how["mode"] = request["mode"]
    if "fusion" in request:
        try:
            how["fusion"] = Fusion(**request["fusion"])
            how["fusion"].check()
            if how["fusion"].depth > MAX_HITS:
                raise UserError(f"--depth {how['fusion'].depth} is over {MAX_HITS}")
        except (TypeError, UserError) as error:
            raise BadRequest(f"fusion can't be used: {error}") from error
    if request.get("where") is not None:
        if len(json.dumps(request["where"])) > MAX_QUERY:
            raise BadRequest(f"where has over {MAX_QUERY} characters")
        how["where"] = request["where"]
    return how


def _document(hit: Hit, with_scores: bool) -> dict[str, Any]:
    title = " ".join(hit.title.split())  # clients read the first line as the title
    contents = f"{title}\n{hit.text}"
    document = {"id": hit.chunk_id, "doc_id": hit.doc_id, "title": hit.title, "contents": contents}
    return {"document": document, "score": hit.score} if with_scores else document
