"""/retrieve over real HTTP, in Search-R1's shape."""

import sys
from contextlib import contextmanager
from subprocess import PIPE, Popen
from unittest import mock

import httpx
import pytest

from forage.data.records import Document
from forage.extras.serving.server import make_app
from forage.store.document_store import DocumentStore
from forage.store.embedder import PACKAGED_EMBEDDER
from forage.store.options import StoreOptions
from forage.store.remote import RemoteStore
from tests import ROOT
from tests.factories import plain_store
from tests.ports import answering
from tests.refusals import refused

DOCUMENTS = [
    Document("gout", "Gout\n(podagra)", "Crystals gather in the big toe.", metadata={"year": 2020}),
    Document("flu", "Influenza", "Fever and a dry cough.", metadata={"year": 2024}),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return DocumentStore.build(
        tmp_path_factory.mktemp("served") / "store", DOCUMENTS, StoreOptions(embedder=PACKAGED_EMBEDDER)
    )


@contextmanager
def running(store, host="127.0.0.1", key=""):
    with answering(make_app(store.search, host, 1, lambda: store, key)) as url:
        yield url


@pytest.fixture(scope="module")
def url(store):
    with running(store) as url:
        yield url


def test_the_request_and_response_of_search_r1(url, store):
    request = {"queries": ["toe", "cough"], "topk": 2, "return_scores": True}
    result = httpx.post(f"{url}/retrieve", json=request).json()["result"]
    hits = store.search(["toe", "cough"], 2)
    assert [[item["document"]["id"] for item in row] for row in result] == [[h.chunk_id for h in row] for row in hits]
    first = result[0][0]
    assert first["document"] == {
        "id": "gout#0", "doc_id": "gout", "title": "Gout\n(podagra)",
        "contents": "Gout (podagra)\nCrystals gather in the big toe.",
    }  # fmt: skip
    assert first["score"] == pytest.approx(hits[0][0].score, abs=1e-5)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "can't be read"),
        (b'{"queries": "toe"}', "queries: "),
        (b'{"queries": ["toe"], "topk": -1}', "topk"),
        (b'{"queries": ["toe"], "topk": ""}', "topk"),
        (b'{"queries": ["%s"]}' % (b"toe " * 2501), "queries.0: String should have at most 10000 characters"),
        (b'{"queries": ["toe"], "fusion": {"depth": 1001}}', "fusion.depth: 1001 is over 1000"),
        (b'{"queries": ["toe"], "return_scores": "no"}', "return_scores: "),
        (b'{"queries": ["toe"], "mode": ["sparse"]}', "mode: "),
        (b'{"queries": ["toe"], "fusion": "rrf"}', "fusion: "),
        (b'{"queries": ["toe"], "fusion": {"fusion": "nonsense"}}', "fusion.fusion: "),
        (b'{"queries": ["toe"], "fusion": {"dense_weight": NaN}}', "--dense-weight nan and --title-weight 0.3 must be"),
        (b'{"queries": ["toe"], "fusion": {"depth": 2.5}}', "fusion.depth: "),
        (b'{"queries": ["toe"], "where": 5}', "where 5 must be an object with one key"),
        (b'{"queries": ["toe"], "where": {"year": {"$like": 2020}}}', "year needs one operator of $eq"),
        (
            b'{"queries": ["toe"], "where": {"year": {"$in": [%s1]}}}' % (b"1, " * 3333),
            "where: over 10000 characters",
        ),
    ],
)
def test_bad_requests_are_answered_with_what_is_wrong(url, body, says):
    answer = httpx.post(f"{url}/retrieve", content=body)
    assert answer.status_code == 400
    assert says in answer.json()["detail"]


def test_beyond_loopback_a_server_may_be_called_by_any_name(store):
    with running(store, "0.0.0.0") as everywhere:
        for headers in ({"Host": "gpu1"}, {"Origin": "http://evil.example"}):
            assert httpx.get(f"{everywhere}/manifest", headers=headers).status_code == 200


def test_a_key_is_asked_for(store, monkeypatch):
    with running(store, key="s3") as url:
        assert httpx.get(f"{url}/health").status_code == 200
        for key in ("", "Bearer s4", "s3", "Bearer \xe9"):
            answer = httpx.post(
                f"{url}/retrieve", json={"queries": ["toe"]}, headers={"Authorization": key.encode("latin-1")}
            )
            assert answer.status_code == 401
        with refused(f"{url} wants a key, or another one; set STORE_API_KEY to the server's"):
            RemoteStore(url)
        monkeypatch.setenv("STORE_API_KEY", "s3")
        assert RemoteStore(url).search(["toe"], 1, "sparse") == store.search(["toe"], 1, "sparse")


def test_a_request_that_asks_for_too_much_is_refused_by_its_count(store, monkeypatch):
    searched = mock.Mock(side_effect=store.search)
    monkeypatch.setattr(store, "search", searched)
    with running(store) as url:
        answer = httpx.post(f"{url}/retrieve", json={"queries": ["toe"] * 11, "topk": 1000})
        assert (answer.status_code, answer.json()["detail"]) == (
            413,
            "11 queries with topk 1000 are over 10000 passages",
        )
        assert not searched.called
        monkeypatch.setattr(
            "forage.extras.serving.server.MAX_TEXT", 99
        )  # gout has 45 characters with its title, flu 31
        answer = httpx.post(f"{url}/retrieve", json={"queries": ["toe", "cough"], "topk": 2})
        assert answer.status_code == 413
        assert answer.json()["detail"] == "152 characters were found, over 99; ask for fewer passages"
        assert httpx.post(f"{url}/retrieve", json={"queries": ["toe"], "topk": 2}).status_code == 200


def test_what_is_too_much_at_once_is_asked_for_in_parts(url, store, monkeypatch):
    monkeypatch.setattr("forage.extras.serving.server.MAX_PASSAGES", 4)
    queries = ["toe", "cough", "crystals", "fever", "dry toe"]
    assert RemoteStore(url).search(queries, 2) == store.search(queries, 2)
    monkeypatch.setattr("forage.extras.serving.server.MAX_PASSAGES", 1)
    with refused(r"refuses the search \(status 413: 1 queries with topk 2 are over 1 passages\)"):
        RemoteStore(url).search(queries, 2)


@pytest.mark.parametrize("mode", ["sparse", "dense", "hybrid"])
def test_a_search_by_metadata_finds_what_the_folder_does(url, store, mode):
    for where in ({"year": 2024}, {"year": {"$ne": 2024}}, {"year": 1900}):
        found = RemoteStore(url).search(["toe", "cough"], 2, mode, where=where)
        assert found == store.search(["toe", "cough"], 2, mode, where=where)
        assert {hit.doc_id for row in found for hit in row} <= {"flu" if where == {"year": 2024} else "gout"}


@pytest.mark.slow
def test_a_server_takes_up_an_edited_store_and_says_so(tmp_path):
    """A client that knows the store of before stops."""
    folder = tmp_path / "store"
    plain_store(folder, DOCUMENTS).close()
    command = [sys.executable, "document_store.py", "serve", "--store", folder, "--mode", "sparse", "--port", "0"]
    with Popen(command, stdout=PIPE, stderr=PIPE, text=True, cwd=ROOT) as server:
        try:
            url = server.stdout.readline().split()[-1].removesuffix("/retrieve")
            remote = RemoteStore(url)
            assert remote.search(["hives"], 1, "sparse") == [[]]
            with DocumentStore.open(folder) as store:
                store.add([Document("rash", "Rash", "Hives.")])
            with refused("serves another store than at the start"):
                remote.search(["hives"], 1, "sparse")
            assert f"{folder} has changed: serving its 3 documents" in server.stderr.readline()
            assert RemoteStore(url).fingerprint == store.fingerprint
            assert RemoteStore(url).search(["hives"], 1, "sparse") == store.search(["hives"], 1, "sparse")
            (folder / "store.json").write_text("{")
            assert RemoteStore(url).search(["hives"], 1, "sparse") == store.search(["hives"], 1, "sparse")
            assert f"{folder} has changed, but is served as it was (" in server.stderr.readline()
        finally:
            server.kill()
