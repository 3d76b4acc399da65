"""DocumentStore: chunk documents, embed them, and search them by meaning, by words, or by both.

    python document_store.py build --documents data/documents.jsonl --store data/store
    python document_store.py add --documents new.jsonl --store data/store
    python document_store.py delete --ids gout flu --store data/store
    python document_store.py search --store data/store "how is gout noticed"
    python document_store.py serve --store data/store --port 8000
    python document_store.py serve --store data/store --protocol mcp

Files of a store:
    store.json      embedder and options; written last
    chunks.jsonl, originals.jsonl, bm25.npz
    chroma/         vectors, unless they are on a Chroma server

Any number of processes may read a store at once; only one may build or edit it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import forage  # noqa: F401 before what may not be installed

# isort: split
from forage.arguments import POSITIONAL, run_script
from forage.data.records import read_documents
from forage.errors import UserError, check_at_least_one
from forage.files import check_files_apart, check_folder
from forage.store.fusion import Hit
from forage.store.manifest import PARTS
from forage.store.options import KEY, Fusion, Mode, StoreAddress, StoreOptions
from forage.text import say, titled

# Importing this module is for the class. Running it must print --help at once, so each command imports what it needs.
if TYPE_CHECKING or __name__ != "__main__":
    from forage.store.document_store import DocumentStore

__all__ = ["DocumentStore", "Fusion", "Hit", "Mode", "StoreOptions"]

PATIENCE = 5.0  # seconds that a person waits for a server
RETRY = 30.0  # seconds until a changed store that could not be opened is tried again


@dataclass
class Build:
    """Build a store from documents.jsonl, or bring it up to date."""

    documents: Path
    """documents.jsonl: one JSON object per line, with id, title and text."""
    store: Path
    """Folder of the store."""
    options: StoreOptions = StoreOptions()


@dataclass
class Add:
    """Add documents to a store; one of a known id takes the other's place. Only what is new is embedded."""

    documents: Path
    """JSON Lines: one object per line, with id, title and text."""
    store: Path = Path("data/store")
    """Folder of the store."""
    retriever: str = ""
    """Your class that the folder was built with, as module:Class."""


@dataclass
class Delete:
    """Remove documents from a store, which keeps at least one."""

    ids: tuple[str, ...]
    """Their ids."""
    store: Path = Path("data/store")
    """Folder of the store."""
    retriever: str = ""
    """Your class that the folder was built with, as module:Class."""


@dataclass
class Search:
    """Print the best chunks for a query: rank, score, id and text."""

    query: Annotated[str, POSITIONAL]
    """The query."""
    store: str = "data/store"
    """Folder of the store, or http://HOST:PORT of its server."""
    k: int = 5
    """Number of chunks to print."""
    mode: Mode = "hybrid"
    """Rank by embeddings (dense), by words (sparse, BM25), or by both (hybrid)."""
    retriever: str = ""
    """Your class that the folder was built with, as module:Class."""
    fusion: Fusion = Fusion()


@dataclass
class Serve:
    """Serve searches over HTTP, as Search-R1's retrieval server does, or as a tool for MCP clients."""

    store: Path = Path("data/store")
    """Folder of the store."""
    protocol: Literal["retrieve", "mcp", "mcp-stdio"] = "retrieve"
    """Search-R1's POST /retrieve (retrieve), MCP over streamable HTTP (mcp), or MCP over standard input and output
    (mcp-stdio)."""
    host: str = "127.0.0.1"
    """Address to listen on. The default accepts connections from this machine only."""
    port: int = 8000
    """Port to listen on; 0: any free one."""
    k: int = 3
    """Chunks to return if a request doesn't set topk (MCP: k)."""
    mode: Mode = "hybrid"
    """Rank by embeddings (dense), by words (sparse, BM25), or by both (hybrid)."""
    about: str = "a library"
    """What the store holds, for MCP clients: "Finds passages of ABOUT"."""
    retriever: str = ""
    """Your class that the folder was built with, as module:Class."""
    fusion: Fusion = Fusion()


def main(command: Build | Add | Delete | Search | Serve) -> None:
    if isinstance(command, Build):
        build(command)
    elif isinstance(command, Add | Delete):
        edit(command)
    elif isinstance(command, Search):
        print_hits(command)
    else:
        serve(command)


def build(command: Build) -> None:
    from forage.store.opening import build_store

    check_folder("--store", command.store)
    check_files_apart("--store", command.store, PARTS, {"--documents": command.documents})
    print_counts(build_store(command.store, read_documents(command.documents), command.options))


def edit(command: Add | Delete) -> None:
    from forage.store.opening import open_store

    store = open_store(command.store, command.retriever)
    if isinstance(command, Add):
        store.add(read_documents(command.documents))
    else:
        store.delete(command.ids)
    print_counts(store)
    if (command.store.parent / "train.jsonl").is_file():
        print(
            f"note: {command.store.parent}/train.jsonl names passages as they were; for new questions change the files "
            "themselves and run data_prep.py, which makes the store of them again"
        )


def print_counts(store: DocumentStore) -> None:
    print(f"{store.path}: {store.manifest.documents} documents, {store.manifest.chunks} chunks")


def print_hits(command: Search) -> None:
    from forage.store.opening import open_address

    check_at_least_one(command, "k")
    address = StoreAddress(command.store, command.retriever, PATIENCE)
    address.check()
    store = open_address(address, Path())
    [hits] = store.search([command.query], command.k, command.mode, fusion=command.fusion)
    for hit in hits:
        text = " ".join(titled(hit.title, hit.text).split())[:200]
        say(f"{hit.rank:2}  {hit.score:.3f}  {hit.chunk_id}  {text}")
    if not hits:
        say(f"nothing found for {command.query!r}")


def serve(command: Serve) -> None:
    from forage.extras.serving.server import MAX_HITS, MAX_READ
    from forage.machine import is_loopback

    check_at_least_one(command, "k")
    if command.k > (most := MAX_HITS if command.protocol == "retrieve" else MAX_READ):
        raise UserError(f"--k {command.k} is over {most}, the most that --protocol {command.protocol} finds")
    if command.protocol != "mcp-stdio" and not is_loopback(command.host) and not os.environ.get(KEY):
        raise UserError(f"--host {command.host} lets other machines search; set {KEY} to a key that they have to send")
    if command.protocol != "retrieve" and find_spec("mcp") is None:
        raise UserError(f"--protocol {command.protocol} needs the package mcp; pip install -r requirements/serving.txt")
    if command.protocol == "mcp-stdio":
        from forage.extras.serving.mcp_server import make_mcp_server, serve_stdio

        live = Live(command)
        server = make_mcp_server(live.search_now, command.k, command.about)
        print(f"serving {command.store} over standard input and output", file=sys.stderr, flush=True)
        serve_stdio(server)
    else:
        serve_http(command)


class Live:
    """The store that is served: opened again once it was edited, with all loaded that a request would wait for."""

    def __init__(self, command: Serve) -> None:
        self.command = command
        self.seen = self.stamp()  # before it is opened, lest an edit goes unseen
        self.again = 0.0  # when what could not be opened is tried again
        self.store = self.opened()

    def stamp(self) -> tuple[int, int] | None:
        manifest = self.command.store / "store.json"
        return (manifest.stat().st_mtime_ns, manifest.stat().st_ino) if manifest.exists() else None

    def opened(self) -> DocumentStore:
        from forage.store.embedder import PROBE
        from forage.store.opening import open_store

        with redirect_stdout(sys.stderr):  # standard output may be where an MCP client reads its messages
            store = open_store(self.command.store, self.command.retriever)
            store.search(PROBE, 1, self.command.mode, fusion=self.command.fusion)
        return store

    def served(self) -> DocumentStore:
        """What is served from now on."""
        if (now := self.stamp()) != self.seen and time.monotonic() >= self.again:
            try:
                self.store, self.seen = self.opened(), now
                said = f"has changed: serving its {len(self.store)} documents"
            except UserError as error:
                self.again = time.monotonic() + RETRY
                said = f"has changed, but is served as it was ({error}); a search after {RETRY:g} s tries again"
            say(f"{self.command.store} {said}", sys.stderr)
        return self.store

    def search(self, queries: Sequence[str], k: int, mode: Mode | None = None, **how: Any) -> list[list[Hit]]:
        return self.store.search(queries, k, mode or self.command.mode, **{"fusion": self.command.fusion} | how)

    def search_now(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.served()
        return self.search(queries, k)


def serve_http(command: Serve) -> None:
    from forage.extras.serving.server import listening, make_app, server_of

    socket, live = listening(command.host, command.port), Live(command)
    key, path = os.environ.get(KEY, ""), "/retrieve"
    if command.protocol == "retrieve":
        app = make_app(live.search, command.host, command.k, live.served, key)
    else:
        from forage.extras.serving.mcp_server import PATH, http_app, make_mcp_server

        app, path = http_app(make_mcp_server(live.search_now, command.k, command.about), command.host, key), PATH
    print(f"serving {command.store} on http://{command.host}:{socket.getsockname()[1]}{path}", flush=True)
    server_of(app).run([socket])


if __name__ == "__main__":
    run_script(main, __doc__, resumes=sys.argv[1:2] == ["build"])
