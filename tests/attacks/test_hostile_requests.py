"""Every server of the project against one table of hostile requests, over real sockets."""

import asyncio
import json
import socket
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Event, Thread
from urllib.parse import urlsplit

import pytest

from forage.agent.protocol import Protocol
from forage.extras.gateway.own_agent import handed_out
from forage.extras.gateway.recording import Recorder
from forage.extras.gateway.server import Gateway
from forage.extras.serving.mcp_server import PATH, http_app, make_mcp_server
from forage.extras.serving.server import MAX_BODY, make_app
from tests.extras.gateway.own_agents import Spelling, agent_over
from tests.ports import answering
from tests.scripted_engine import QUESTION
from tests.tiny import make_tokenizer

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
CHAT = {"model": "policy", "messages": [{"role": "user", "content": "Well?"}]}


def found_nothing(queries, k):
    return [[] for _ in queries]


@contextmanager
def gateway_of(host):
    """(address of an episode, address where episodes are taken)."""
    protocol, ready, told = Protocol(make_tokenizer()), Event(), {}

    async def serve():
        gateway = Gateway((host, 0), handed_out().routes)
        agent = agent_over(Spelling(protocol, *["yes"] * 200))
        with gateway.serving(Recorder(agent, QUESTION, "q1/0", 7)) as address:
            serving = asyncio.create_task(gateway.serve())
            told.update(episode=address, taking=f"{gateway.url}/v1/episodes")
            told["stop"] = partial(serving.get_loop().call_soon_threadsafe, serving.cancel)
            ready.set()
            await asyncio.wait([serving])

    thread = Thread(target=asyncio.run, args=[serve()], daemon=True)
    thread.start()
    assert ready.wait(10)
    yield told["episode"], told["taking"]
    told["stop"]()
    thread.join()


@pytest.fixture(scope="module", params=["127.0.0.1", "127.0.0.2"])
def servers(request):
    """What each is asked, and the status of its answer, by name."""
    host = request.param
    with ExitStack() as opened:
        store = opened.enter_context(answering(make_app(found_nothing, host), host))
        mcp = opened.enter_context(answering(http_app(make_mcp_server(found_nothing, 3, "pages"), host), host))
        episode, taking = opened.enter_context(gateway_of(host))
        yield {
            "store": (f"{store}/retrieve", {"queries": ["toe"]}, 200),
            "mcp": (f"{mcp}{PATH}", LIST, 200),
            "chat": (f"{episode}/chat/completions", CHAT, 200),
            "search": (f"{episode}/search", {"query": "gout"}, 200),
            "episode's mcp": (f"{episode}/mcp", LIST, 200),
            "handed out": (taking, {}, 429),  # none is waiting
        }


SERVERS = ("store", "mcp", "chat", "search", "episode's mcp", "handed out")
ACCEPTS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", "Connection": "close"}


def sent(url, body, headers=(), method="POST"):
    """(status, all that was answered)."""
    at = urlsplit(url)
    lines = [*ACCEPTS.items(), *headers]
    lines += [] if "Host" in dict(lines) else [("Host", at.netloc)]
    lines += [] if "Content-Length" in dict(lines) else [("Content-Length", len(body))]
    head = "".join([f"{method} {at.path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in lines), "\r\n"])
    with socket.create_connection((at.hostname, at.port), timeout=4) as client:
        client.sendall(head.encode("latin-1") + body)
        answered = b"".join(iter(lambda: client.recv(1 << 16), b""))
    return int(answered.split()[1]), answered


HERE, AWAY = "as usual", (400, 403)
HEADERS = [
    ([("Host", "localhost")], HERE), ([("Host", "[::1]:80")], HERE), ([("Origin", "http://localhost:3000")], HERE),
    ([("Host", "evil.example")], AWAY), ([("Host", "127.0.0.1.evil.example:80")], AWAY), ([("Host", "[")], AWAY),
    ([("Host", "localhost@evil.example")], AWAY), ([("Host", "\xe9")], AWAY), ([("Host", "")], AWAY),
    ([("Host", "localhost"), ("Host", "evil.example")], AWAY),
    ([("Origin", "http://evil.example")], AWAY), ([("Origin", "null")], AWAY), ([("Origin", "localhost")], AWAY),
    ([("Origin", "http://localhost"), ("Origin", "http://evil.example")], AWAY),
]  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_no_other_site_s_page_is_answered_or_learns_what_is_there(servers, name):
    url, asked, usual = servers[name]
    assert sent(f"{url}/none", b"{}", [("Origin", "http://evil.example")])[0] == 403
    for headers, wanted in HEADERS:
        status, _ = sent(url, json.dumps(asked).encode(), headers)
        assert status == usual if wanted == HERE else status in wanted, headers


def nested(depth, inner="1"):
    return '{"a": [' * depth + inner + "]}" * depth


def with_tool(asked, parameters):
    """The request with a tool that has these parameters, in JSON."""
    tool = {"type": "function", "function": {"name": "f", "parameters": "HERE"}}
    return json.dumps(asked | {"tools": [tool]}).replace('"HERE"', parameters)


CALLED = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": nested(300)}}]}
BODIES = [
    "", "{", "[]", "null", "9" * 5000, "[" * 100_000, nested(300), nested(490),
    json.dumps(CHAT | {"messages": [CALLED]}), *(with_tool(CHAT, f'{{"properties": {it}}}') for it in ("null", "[]")),
    *(with_tool(CHAT, nested(depth)) for depth in (100, 120, 200, 250, 300, 480)),
]  # fmt: skip


@pytest.mark.parametrize("name", SERVERS)
def test_no_body_ends_in_an_error_of_the_server_s(servers, name):
    url, asked, usual = servers[name]
    for body in (b"\xff", *map(str.encode, BODIES)):
        assert sent(url, body)[0] < 500, body[:200]
    assert sent(url, json.dumps(asked).encode())[0] == usual


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e3", "\xb2", str(MAX_BODY + 1)])
def test_a_length_that_can_not_be_meant_is_refused(servers, name, length):
    assert sent(servers[name][0], b"", [("Content-Length", length)])[0] in (400, 413)


@pytest.mark.parametrize("name", SERVERS)
def test_a_body_where_none_belongs_is_no_request_of_its_own(servers, name):
    url, _, _ = servers[name]
    if "mcp" in name:
        url = f"{url}/none"  # a GET of this address waits for events
    smuggled = f"POST {urlsplit(url).path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode()
    _, answered = sent(url, smuggled, [("Connection", "keep-alive")], "GET")
    assert answered.count(b"HTTP/1.1 ") == 1
