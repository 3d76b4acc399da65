"""The store as a tool of MCP clients, asked by the mcp package's own client: in memory, over HTTP and over pipes."""

import asyncio
import sys

import pytest
from mcp import Client, StdioServerParameters

from forage.extras.serving.mcp_server import PATH, http_app, make_mcp_server
from tests import ROOT
from tests.factories import plain_store
from tests.ports import answering
from tests.scripted_engine import search_many

QUERY = "sore toe at night"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    texts = ("The toe is sore at night.", "A sore toe.", "Rye grows.", "Waves.", "Clouds.", "Craters.")
    documents = [{"title": f"Page {n}", "text": text} for n, text in enumerate(texts)]
    return plain_store(tmp_path_factory.mktemp("served") / "store", documents)


def server_of(store):
    return make_mcp_server(lambda queries, k: store.search(queries, k, "sparse"), 3, "medical pages")


def asked(server, arguments, **more):
    """A client's result of one call."""

    async def ask():
        async with Client(server, **more) as client:
            return await client.call_tool("search", arguments)

    return asyncio.run(ask())


def check_found(result, store, k=3):
    """The result is what the store finds, in both forms."""
    hits = store.search(QUERY, k, "sparse")
    assert not result.is_error
    assert result.structured_content == {
        "hits": [
            {"rank": hit.rank, "title": hit.title, "text": hit.text, "chunk_id": hit.chunk_id, "doc_id": hit.doc_id,
             "score": pytest.approx(hit.score)} for hit in hits
        ]
    }  # fmt: skip
    lines = result.content[0].text.splitlines()
    assert len(lines) == len(hits) == k
    assert all(line.startswith(f"[{hit.rank}] {hit.title}: ") for line, hit in zip(lines, hits, strict=True))


def test_a_client_is_told_of_the_tool(store):
    async def ask():
        async with Client(server_of(store)) as client:
            return (await client.list_tools()).tools

    [tool] = asyncio.run(ask())
    assert (tool.name, tool.description) == ("search", "Finds passages of medical pages, the best first.")
    assert tool.input_schema["required"] == ["query"]
    assert tool.input_schema["properties"]["k"]["default"] == 3
    assert tool.annotations.read_only_hint


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({}, "query"), ({"query": "x" * 10_001}, "query"), ({"query": "x", "k": 10**5000}, "k"),
        ({"query": "x", "k": True}, "k"),
    ],
)  # fmt: skip
def test_a_bad_call_is_told_what_is_wrong(arguments, wrong):
    result = asked(make_mcp_server(search_many, 3, "a library"), arguments)
    assert result.is_error
    assert result.content[0].text.splitlines()[1] == wrong


@pytest.fixture(scope="module")
def url(store):
    with answering(http_app(server_of(store), "127.0.0.1")) as url:
        yield f"{url}{PATH}"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_over_http(url, store, mode):
    check_found(asked(url, {"query": QUERY, "k": 2}, mode=mode), store, 2)
    assert asked(url, {"query": ""}, mode=mode).is_error


# The command, as clients start it


def command(store, protocol, *more):
    return ["document_store.py", "serve", "--store", str(store), "--mode", "sparse", "--protocol", protocol, *more]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_starts_the_command_and_speaks_over_pipes(store, mode):
    start = StdioServerParameters(command=sys.executable, args=command(store.path, "mcp-stdio"), cwd=ROOT)
    check_found(asked(start, {"query": QUERY, "k": 2}, mode=mode), store, 2)
