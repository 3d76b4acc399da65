"""/retrieve over real HTTP, in Search-R1's shape."""

from threading import Thread

import httpx
import pytest

from forage.data.records import Document
from forage.store.document_store import DocumentStore
from forage.store.embedder import PACKAGED_EMBEDDER
from forage.store.options import StoreOptions
from forage.store.server import make_server

DOCUMENTS = [
    Document("gout", "Gout\n(podagra)", "Crystals gather in the big toe."),
    Document("flu", "Influenza", "Fever and a dry cough."),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return DocumentStore.build(
        tmp_path_factory.mktemp("served") / "store", DOCUMENTS, StoreOptions(embedder=PACKAGED_EMBEDDER)
    )


@pytest.fixture(scope="module")
def url(store):
    server = make_server(lambda queries, k: store.search(queries, k), "127.0.0.1", 0, k=1)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


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
        (b"{", "not JSON"),
        (b'{"queries": "toe"}', "list of strings"),
        (b'{"queries": ["toe"], "topk": -1}', "topk"),
    ],
)
def test_bad_requests_are_answered_with_what_is_wrong(url, body, says):
    answer = httpx.post(f"{url}/retrieve", content=body)
    assert answer.status_code == 400
    assert says in answer.json()["detail"]
