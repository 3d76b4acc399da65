"""Search for the rewriter: every mode, documents cut into chunks, and a store that exists already."""

import pytest
from transformers import AutoTokenizer

from forage.errors import UserError
from forage.rewriter.data import open_search, read_data
from forage.rewriter.options import Options
from forage.store.document_store import DocumentStore
from forage.store.embedder import PACKAGED_EMBEDDER
from forage.store.options import StoreOptions
from tests.tiny_rewriter import make_tiny, write_data


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return AutoTokenizer.from_pretrained(model_folder)


def test_a_document_counts_by_its_best_chunk(tmp_path, tokenizer):
    sentences = " ".join(f"Sentence {n} speaks of topic{n} and of gout." for n in range(60))
    corpus = [{"doc_id": "long", "text": sentences}, {"doc_id": "a", "text": "Gout."}, {"doc_id": "b", "text": "Flu."}]
    gout, flu = ({"query": f"{name}?", "relevant_doc_ids": [doc_id]} for name, doc_id in (("gout", "a"), ("flu", "b")))
    folder = write_data(tmp_path, corpus, train=[gout, flu], eval=[{"query": "long?", "relevant_doc_ids": ["long"]}])
    for mode in ("sparse", "hybrid"):
        options = Options(data=folder, mode=mode, embedder=PACKAGED_EMBEDDER, k=2)
        found = open_search(options, read_data(options, tokenizer))(["topic7 gout"])
        assert sorted(found[0]) == ["a", "long"]


def test_an_existing_store_is_searched_by_its_chunks(tiny, tmp_path, tokenizer):
    options = Options(data=tiny / "data", store=tmp_path / "store", k=2)
    data = read_data(options, tokenizer)
    DocumentStore.build(tmp_path / "store", data.documents, StoreOptions("none"))
    with pytest.raises(UserError, match=r"store lacks 12 of the 12 documents"):
        open_search(options, data)
    corpus = [{"doc_id": f"{d.id}#0", "text": d.text} for d in data.documents]
    (tmp_path / "data").mkdir()
    rows = [{"query": f"remedy{n}", "relevant_doc_ids": [f"d{n}#0"]} for n in range(12)]
    options = Options(
        data=write_data(tmp_path / "data", corpus, train=rows[:8], eval=rows[8:]), store=tmp_path / "store", k=2
    )
    assert open_search(options, read_data(options, tokenizer))(["remedy4"])[0] == ["d4#0"]
