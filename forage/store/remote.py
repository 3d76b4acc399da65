"""RemoteStore: a store behind a search server, asked over HTTP in Search-R1's shape (forage/extras/serving/server.py).

Our own server says on /manifest what it serves, so that a run can refuse another store, and it takes the agent's mode
and weights with each request: it finds what the folder, opened in this process, would. Any other server ranks as it
likes.
Labels name chunks by their ids, so its passages need the ids that the data's chunks have.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from forage.errors import UserError
from forage.heartbeat import beat
from forage.machine import bearer
from forage.manifest import digest, file_digest
from forage.store.fusion import Hit
from forage.store.manifest import NO_EMBEDDER, StoreManifest, fingerprint_of
from forage.store.options import KEY, TOO_MUCH, Fusion, Mode, StoreOptions
from forage.store.where import Where
from forage.text import encodable, from_json, say, typed, without_passwords

if TYPE_CHECKING:
    from forage.store.embedder import Embedder

QUERIES = 512  # the most in one request
MAX_REPLY = 128 * 2**20  # bytes; ours says less, whatever a search finds
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0
BUSY = (408, 425, 429)  # statuses that, beside 500 and above, may pass
NO_MANIFEST = (404, 405, 501)  # 501: a server that knows no GET at all
SAYS = "document_store.py serve shows the replies that are needed"


class RemoteStore:
    """A store that a server searches. Opening it asks what the server has."""

    def __init__(self, url: str, patience: float = 60.0, timeout: float = 120.0) -> None:
        address = url.rstrip("/").removesuffix("/retrieve")
        self.path = without_passwords(address)
        self.patience, self.timeout = patience, timeout
        try:
            self._client = httpx.Client(base_url=address, timeout=timeout, headers=bearer(KEY))
        except (httpx.InvalidURL, ValueError) as error:
            raise UserError(f"--store {url}: {error}; give a server's address as http://HOST:PORT") from error
        if not self._client.base_url.host:
            raise UserError(f"--store {url} names no host; give a server's address as http://HOST:PORT")
        self.manifest, self._digest = self._read_manifest()
        self.options = self.manifest.options

    @property
    def ours(self) -> bool:
        """Whether the server has a manifest. Any other is known by its address alone."""
        return bool(self._digest)

    @property
    def fingerprint(self) -> str:
        """Our server's is the served folder's own, so a run may change from the one to the other."""
        if self.ours:
            return fingerprint_of(self.manifest, self._digest)
        return digest(self.path.encode())

    @cached_property
    def embedder(self) -> Embedder:
        """The served store's embedder, loaded here; refuses another model under the same name."""
        from forage.store.document_store import embedder_of  # it loads torch

        return embedder_of(self.manifest, self.path)

    def note(self, chunks: Path) -> str:
        """What to tell whoever opens the store beside the chunks.jsonl of its data; empty if nothing."""
        if not self.ours:
            return f"note: {self.path} has no /manifest, so it is known by its address and ranks as it likes"
        if file_digest(chunks) in ("", self._digest):
            return ""
        return f"note: {self.path} serves other chunks than {chunks.parent} has; labels count where their ids are equal"

    # Searching

    def search(
        self,
        queries: Sequence[str],
        k: int = 5,
        mode: Mode = "hybrid",
        *,
        fusion: Fusion = Fusion(),
        where: Where | None = None,
    ) -> list[list[Hit]]:
        """The k best chunks for each query, best first; none for a blank one. All queries go in one request."""
        if isinstance(queries, str):
            raise UserError("a store on a server takes a list of queries; give [query] for a single one")
        texts = list(map(encodable, queries))
        asked = list(dict.fromkeys(text for text in texts if text.strip()))
        if where is not None and not self.ours:
            raise UserError(f"{self.path} has no /manifest, so it can't search by metadata; leave where out")
        how = {"mode": mode, "fusion": asdict(fusion), "where": where} if self.ours else {}
        found: dict[str, list[Hit]] = {}
        for first in range(0, len(asked), QUERIES):
            some = asked[first : first + QUERIES]
            found |= zip(some, self._retrieve(some, k, how), strict=True)
        return [found.get(text, []) for text in texts]

    def _retrieve(self, queries: Sequence[str], k: int, how: Mapping[str, Any]) -> list[list[Hit]]:
        body = {"queries": queries, "topk": k, "return_scores": True, **how}
        reply = self._ask("POST", "/retrieve", json=body)
        if reply.status_code == TOO_MUCH and len(queries) > 1:
            half = len(queries) // 2
            return self._retrieve(queries[:half], k, how) + self._retrieve(queries[half:], k, how)
        if reply.status_code != 200:
            raise UserError(f"{self.path}/retrieve refuses the search ({said(reply)}); check --store, or the server")
        try:
            answer = from_json(reply.content)
            served = answer["store"] if self.ours else self.fingerprint
            found = [[self._hit(item, rank) for rank, item in enumerate(row[:k], 1)] for row in answer["result"]]
            if len(found) != len(queries):
                raise ValueError(f"{len(found)} results for {len(queries)} queries")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"{self.path}/retrieve is no search server's reply ({why}); {SAYS}") from error
        if self.ours and served != self.fingerprint:
            raise UserError(f"{self.path} serves another store than at the start; serve the first again, then resume")
        return found

    def _hit(self, item: Mapping[str, Any], rank: int) -> Hit:
        """A passage of a reply; where the server left out scores, the item is the document itself."""
        document = item.get("document", item)
        head, line_break, rest = text_in(document, "contents").partition("\n")
        title = text_in(document, "title", head.strip(' "') if line_break else "")
        text = rest if line_break else head
        if not (title.strip() or text.strip()):
            raise ValueError("a document without contents")
        if document.get("id") is None:
            raise UserError(
                f"{self.path} gives passages without ids ({title[:40]!r}), and labels need ids: let the server add them"
            )
        name = text_in(document, "id")
        doc_id = text_in(document, "doc_id", name.rpartition("#")[0] or name)
        score = float(item.get("score", 1 / rank))
        if not math.isfinite(score):
            raise ValueError(f"a score of {score}")
        return Hit(name, doc_id, title, text, score, rank)

    # HTTP

    def _read_manifest(self) -> tuple[StoreManifest, str]:
        """The manifest of our server and its chunks' digest; of another, after a trial, a blank one and nothing."""
        reply = self._ask("GET", "/manifest")
        if reply.status_code in NO_MANIFEST:
            self.manifest, self._digest = StoreManifest(True, "", StoreOptions(NO_EMBEDDER)), ""
            self._retrieve(["heart"], 1, {})
            return self.manifest, ""
        try:
            values = dict(from_json(reply.content))
            chunks = str(values.pop("chunks_digest"))
            return typed(StoreManifest, values), chunks
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.path}/manifest is no store's manifest ({said(reply)}); check --store") from error

    def _ask(self, method: str, route: str, **body: Any) -> httpx.Response:
        """The reply; asked again, with growing pauses, while the server is away or busy."""
        deadline, pause = time.monotonic() + self.patience, FIRST_PAUSE
        while True:
            beat()
            try:
                reply = self._reply(method, route, **body)
                if reply.status_code == 401:
                    raise UserError(f"{self.path} wants a key, or another one; set {KEY} to the server's")
                if reply.status_code not in BUSY and (reply.status_code < 500 or reply.status_code in NO_MANIFEST):
                    return reply
                why = said(reply)
            except httpx.RequestError as error:
                why = f"{type(error).__name__}: {error}".removesuffix(": ")
            if time.monotonic() + pause > deadline:
                raise UserError(
                    f"{self.path} gives no answer ({why}); start the store's server, then re-run the same command"
                )
            if pause == FIRST_PAUSE:
                say(f"waiting for {self.path} ({why})")
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _reply(self, method: str, route: str, **body: Any) -> httpx.Response:
        """One reply, of which no more is read than any search finds, and no longer than a request may take."""
        deadline, content = time.monotonic() + self.timeout, bytearray()
        with self._client.stream(method, route, **body) as reply:
            for part in reply.iter_bytes():
                content += part
                if len(content) > MAX_REPLY:
                    raise UserError(f"{self.path} replies with over {MAX_REPLY} bytes; check --store, or ask for less")
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout(f"its reply did not end in {self.timeout:g} s")
        return httpx.Response(reply.status_code, content=bytes(content))


def text_in(document: Mapping[str, Any], name: str, other: str = "") -> str:
    """A text of a document, or another where it has none of that name; a number, as ids may be, becomes one."""
    value = document.get(name, other)
    if type(value) not in (str, int):
        raise TypeError(f"{name} is {value!r:.40}")
    return str(value)


def said(reply: httpx.Response) -> str:
    """What a server says of a request it did not answer, in one line."""
    text = " ".join(reply.text.split())
    try:
        detail = from_json(reply.content)["detail"]
    except (ValueError, KeyError, TypeError):
        detail = text
    return f"status {reply.status_code}: {str(detail)[:200]}".removesuffix(": ")
