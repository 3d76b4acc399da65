"""The store: build, resume, refuse, search; with the real embedder and a real Chroma."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from forage.data.records import Document
from forage.store import document_store
from forage.store.document_store import DocumentStore
from forage.store.embedder import PACKAGED_EMBEDDER, Embedder
from forage.store.options import Fusion, StoreOptions
from tests.refusals import refused

OPTIONS = StoreOptions(embedder=PACKAGED_EMBEDDER, chunk_tokens=48, chunk_overlap=8)
DOCUMENTS = [
    Document("gout", "Gout", "Uric acid crystals gather in a joint. The big toe swells at night and is very sore."),
    Document("asthma", "Asthma", "The airways tighten. Breathing out whistles, and coughing comes at night."),
    Document("flu", "Influenza", "A virus brings fever, aching muscles and a dry cough. A yearly vaccine protects."),
    Document("anemia", "Anemia", "Too little iron makes the skin pale. Tiredness and breathlessness on stairs follow."),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return DocumentStore.build(tmp_path_factory.mktemp("module") / "store", DOCUMENTS, OPTIONS)


def ids(hits):
    return [[hit.doc_id for hit in row] for row in hits]


@pytest.mark.parametrize("mode", ["dense", "sparse", "hybrid"])
@pytest.mark.parametrize("fusion", ["weighted", "rrf"])
def test_each_mode_finds_what_was_asked_for(store, mode, fusion):
    hits = store.search(["swollen toe", "vaccine against the virus"], 2, mode, fusion=Fusion(fusion))
    assert [row[0].doc_id for row in hits] == ["gout", "flu"]
    first = hits[0][0]
    assert (first.chunk_id, first.title, first.rank) == ("gout#0", "Gout", 1)
    assert first.text == DOCUMENTS[0].text
    assert [hit.score for hit in hits[0]] == sorted((hit.score for hit in hits[0]), reverse=True)


def test_dense_weight_moves_hybrid_from_one_part_to_the_other(store):
    query = ["pale and short of breath"]
    only_dense = store.search(query, 4, fusion=Fusion(dense_weight=1, title_weight=0))
    assert ids(only_dense) == ids(store.search(query, 4, "dense"))
    only_sparse = store.search(query, 1, fusion=Fusion(dense_weight=0, title_weight=0))
    assert ids(only_sparse) == ids(store.search(query, 1, "sparse"))
    only_title = store.search(["is the flu, not asthma"], 2, fusion=Fusion(dense_weight=0, title_weight=1))[0]
    assert [(hit.doc_id, hit.score) for hit in only_title] == [("asthma", 1.0), ("gout", 0.0)]  # a tie goes by place


def test_a_build_that_ended_goes_on_where_it_stopped(tmp_path, monkeypatch):
    documents = [Document(f"d{i}", f"Topic {i}", f"Text number {i} about topic {i}.") for i in range(10)]
    encode, groups = Embedder.encode_passages, []

    def fails_in_the_second(self, texts):
        groups.append(texts)
        if len(groups) == 2:
            raise KeyboardInterrupt
        return encode(self, texts)

    monkeypatch.setattr(document_store, "EMBED_GROUP", 4)
    monkeypatch.setattr(Embedder, "encode_passages", fails_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        DocumentStore.build(tmp_path / "store", documents, OPTIONS)
    with refused("did not finish"):
        DocumentStore.open(tmp_path / "store")
    resumed = DocumentStore.build(tmp_path / "store", documents, OPTIONS)
    assert resumed.embedded == 6
    undisturbed = DocumentStore.build(tmp_path / "other", documents, OPTIONS)
    assert ids(resumed.search(["topic 7"], 10)) == ids(undisturbed.search(["topic 7"], 10))


def edit_manifest(path, **values):
    manifest = json.loads((path / "store.json").read_text())
    (path / "store.json").write_text(json.dumps(manifest | values))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda p: edit_manifest(p, options=7), "is damaged"),
        (lambda p: (p / "store.json").unlink(), "no store.json"),
        (lambda p: (p / "bm25.npz").write_bytes(b"x"), "bm25.npz was changed since"),
        (lambda p: os.rename(p / "chroma", p / "away"), "chroma is missing"),
        (lambda p: cut_last_line(p / "chunks.jsonl"), "chunks.jsonl was changed since the store was built; re-run"),
    ],
)
def test_open_refuses_what_is_not_whole_and_says_what(store, tmp_path, damage, says):
    path = Path(shutil.copytree(store.path, tmp_path / "copy"))
    damage(path)
    with refused(says):
        DocumentStore.open(path)


def cut_last_line(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def test_another_embedder_of_the_same_name_is_refused_by_its_vectors(store, tmp_path):
    path = Path(shutil.copytree(store.path, tmp_path / "copy"))
    edit_manifest(path, probe=[1.0] + [0.0] * (store.manifest.dimension - 1))
    with refused("not the model it was built with"):
        DocumentStore.open(path).search(["toe"], 1)


@pytest.mark.parametrize(
    ("documents", "options", "says"),
    [
        ([], OPTIONS, "no documents"),
        ([DOCUMENTS[0]] * 2, OPTIONS, "'gout' occurs twice"),
        (DOCUMENTS, replace(OPTIONS, chunk_tokens=300), "300 is over the 254 tokens"),
        (DOCUMENTS, replace(OPTIONS, embedder="no/such-model"), "'no/such-model' can't be loaded"),
        (DOCUMENTS, replace(OPTIONS, chroma_url="http://127.0.0.1:9"), "127.0.0.1:9"),
    ],
)
def test_build_refuses_bad_input_in_one_line(tmp_path, documents, options, says):
    with refused(says):
        DocumentStore.build(tmp_path / "store", documents, options)


def test_a_mode_that_is_none_is_told(store):
    with refused("semantic"):
        store.search("gout", mode="semantic")


def test_another_model_under_the_same_name_embeds_everything_anew(tmp_path):
    DocumentStore.build(tmp_path / "store", DOCUMENTS, OPTIONS)
    edit_manifest(tmp_path / "store", probe=[1.0] + [0.0] * 383)
    assert DocumentStore.build(tmp_path / "store", DOCUMENTS, OPTIONS).embedded == 4
