"""A store behind a server finds what the folder does; replies of other servers; servers that are away or talk nonsense.

Every server here is a real one, on loopback.
"""

import json

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from forage.data.records import Document
from forage.extras.serving.server import make_app
from forage.store.document_store import DocumentStore
from forage.store.embedder import PACKAGED_EMBEDDER
from forage.store.manifest import read_store_manifest
from forage.store.opening import manifest_at
from forage.store.options import Fusion, StoreAddress, StoreOptions
from forage.store.remote import RemoteStore
from tests.ports import answering
from tests.refusals import refused

DOCUMENTS = [
    Document("gout", "Gout\n(podagra)", "Crystals gather in the big toe. It hurts at night."),
    Document("flu", "Influenza", "Fever and a dry cough. Rest helps."),
    Document("asthma", "", "The airways narrow, and breathing hurts."),
]
QUERIES = ["sore toe at night", "cough", " ", "sore toe at night", "half an emoji \ud83d hurts"]


def serving(store, asked=None):
    """As document_store.py serve does; `asked` collects the batches of queries."""

    def search(queries, k, mode="sparse", fusion=Fusion(), where=None):
        if asked is not None:
            asked.append(queries)
        return store.search(queries, k, mode, fusion=fusion, where=where)

    return answering(make_app(search, served=lambda: store))


def foreign(reply, asked=None, port=0):
    """A server that knows /retrieve alone. `reply` makes of a request (status, answer); an answer may be bytes."""

    async def retrieve(request):
        body = await request.json()
        if asked is not None:
            asked.append(body)
        status, answer = reply(body)
        return Response(answer if isinstance(answer, bytes) else json.dumps(answer), status)

    return answering(Starlette(routes=[Route("/retrieve", retrieve, methods=["POST"])]), port=port)


def replying(*documents, **more):
    """Search-R1's reply: these documents for every query, the first with the highest score."""
    row = [{"document": document, "score": 9.5 - address, **more} for address, document in enumerate(documents)]
    return lambda request: (200, {"result": [row for _ in request["queries"]]})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder with a store that has vectors."""
    folder = tmp_path_factory.mktemp("data")
    DocumentStore.build(folder / "store", DOCUMENTS, StoreOptions(embedder=PACKAGED_EMBEDDER))
    return folder


@pytest.fixture(scope="module")
def store(data):
    return DocumentStore.open(data / "store")


@pytest.fixture(scope="module")
def asked():
    return []


@pytest.fixture(scope="module")
def url(store, asked):
    with serving(store, asked) as url:
        yield url


@pytest.mark.parametrize("mode", ["hybrid", "dense", "sparse"])
def test_it_finds_what_the_folder_does_to_the_last_bit(url, store, mode):
    for fusion in (Fusion(), Fusion("rrf", 0.3, 0.2, depth=2)):
        assert RemoteStore(url).search(QUERIES, 2, mode, fusion=fusion) == store.search(QUERIES, 2, mode, fusion=fusion)


def test_the_queries_of_a_step_go_in_one_request_each_of_them_once(url, asked):
    remote = RemoteStore(url)
    asked.clear()
    remote.search(QUERIES, 1, "sparse")
    assert asked == [["sore toe at night", "cough", "half an emoji ? hurts"]]
    asked.clear()
    found = remote.search([f"cough {number}" for number in range(1200)], 1, "sparse")
    assert [len(queries) for queries in asked] == [512, 512, 176]
    assert {hits[0].chunk_id for hits in found} == {"flu#0"}
    asked.clear()
    assert remote.search([" ", ""], 1) == [[], []]
    assert asked == []


def test_its_card_embedder_and_fingerprint_are_those_of_the_folder(url, store, data):
    remote = RemoteStore(f"{url}/retrieve/")
    assert remote.manifest == store.manifest == read_store_manifest(data / "store")
    assert remote.fingerprint == store.fingerprint == manifest_at(StoreAddress(), data)[1]
    assert manifest_at(StoreAddress(url), data) == (store.manifest, store.fingerprint)
    np.testing.assert_array_equal(remote.embedder.encode_queries(["toe"]), store.embedder.encode_queries(["toe"]))
    assert remote.note(data / "store" / "chunks.jsonl") == ""


# Servers of others


def test_a_server_of_search_r1_is_taken_by_its_ids(data):
    """FAISS: documents as they are in its corpus, with an id; the first line is the title, in quotes."""
    asked = []
    reply = replying({"id": "gout#0", "contents": '"Gout"\nIt hurts.'}, {"id": 7, "contents": '"Rome"\nA city.\nOld.'})
    with foreign(reply, asked) as url:
        remote = RemoteStore(url)
        assert "known by its address" in remote.note(data / "store" / "chunks.jsonl")
        [hits] = remote.search(["toe"], 1, "dense")
        assert [(hit.chunk_id, hit.doc_id, hit.title, hit.text, hit.score) for hit in hits] == [
            ("gout#0", "gout", "Gout", "It hurts.", 9.5)
        ]
        [hits] = remote.search(["toe"], 2)
        assert (hits[1].chunk_id, hits[1].doc_id, hits[1].text, hits[1].rank) == ("7", "7", "A city.\nOld.", 2)
        assert asked[-1] == {"queries": ["toe"], "topk": 2, "return_scores": True}
        assert remote.fingerprint == RemoteStore(f"{url}/retrieve").fingerprint
        with foreign(reply) as second:
            assert RemoteStore(second).fingerprint != remote.fingerprint


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"<html>", "JSONDecodeError"),
        (b"[" * 100_000, "too many brackets within each other"),
        ({"result": []}, "ValueError: 0 results for 1 queries"),
        ({"result": [[{"document": {"id": "a", "contents": "t\nb"}, "score": "high"}]]}, "could not convert"),
        ({"result": [[{"document": {"id": "a", "contents": "t\nb"}, "score": float("nan")}]]}, "a score of nan"),
        ({"result": [[{"document": {"id": "a", "contents": "t\nb"}, "score": 10**400}]]}, "OverflowError"),
    ],
)
def test_nonsense_is_one_line_that_names_the_address(answer, says):
    with foreign(lambda _: (200, answer)) as url, refused(f"^{url}/retrieve is no search server's reply .*{says}"):
        RemoteStore(url)


@pytest.mark.parametrize("status", [400, 503])
def test_brackets_in_any_reply_are_one_line(status):
    with foreign(lambda _: (status, b"[" * 100_000)) as url, refused(url):
        RemoteStore(url, patience=0.1)


def test_a_reply_that_does_not_end_is_cut_off(monkeypatch):
    monkeypatch.setattr("forage.store.remote.MAX_REPLY", 1000)
    reply = replying({"id": "a", "contents": "t\nb" + "b" * 500})
    with foreign(reply) as url:
        remote = RemoteStore(url)
        with refused(f"{url} replies with over 1000 bytes; check --store, or ask for less"):
            remote.search(["toe", "cough"], 1)
        remote.timeout, remote.patience = 0, 0.1
        with refused(r"gives no answer \(ReadTimeout: its reply did not end in 0 s\)"):
            remote.search(["toe"], 1)


# Servers that are away


def test_a_busy_server_is_asked_again_with_pauses(capsys):
    statuses = iter([429, 503, 500])
    good = replying({"id": "a", "contents": "t\nb"})

    def reply(request):
        status = next(statuses, 200)
        return good(request) if status == 200 else (status, {"detail": "later"})

    asked = []
    with foreign(reply, asked) as url:
        assert RemoteStore(url).search(["toe"], 1)[0][0].chunk_id == "a"
    assert len(asked) == 5
    assert capsys.readouterr().out == f"waiting for {url} (status 429: later)\n"


def test_a_password_in_the_address_is_not_told():
    with foreign(replying({"id": "a", "contents": "t\nb"})) as url:
        remote = RemoteStore(url.replace("://", "://me:secret@"), patience=0.1)
        assert (remote.path, remote.fingerprint) == (url, RemoteStore(url).fingerprint)
        assert remote.search(["toe"], 1)
    with refused(rf"^{url} gives no answer \(ConnectError: .*\); start the store's server"):
        remote.search(["toe"], 1)
    with refused("--chroma-url takes no user or password"):
        StoreOptions("none", chroma_url="http://me:secret@host:8000").check()
