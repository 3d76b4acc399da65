"""Search for the rewriter: by words, and in a store that exists already."""

import pytest
from transformers import AutoTokenizer

from forage.data.records import Document
from forage.errors import UserError
from forage.extras.rewriter.data import read_data
from forage.extras.rewriter.options import Options
from forage.store.document_store import DocumentStore
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


def test_words_find_documents_once(tiny, tokenizer):
    options = Options(data=tiny / "data", k=3)
    found = read_data(options, tokenizer).search(["remedy4 disease", "What mends disease 7?"])
    assert [len(set(ids)) for ids in found] == [3, 3]
    assert (found[0][0], found[1][0]) == ("d4", "d7")
    assert read_data(options, tokenizer).search(["remedy4 disease"]) == [found[0]]  # opens the same store


def test_an_existing_store_is_searched_by_its_chunks(tiny, tmp_path, tokenizer):
    options = Options(data=tiny / "data", store=str(tmp_path / "store"), k=2)
    texts = read_data(Options(data=tiny / "data"), tokenizer).texts
    documents = [Document(doc_id, "", text) for doc_id, text in texts.items()]
    DocumentStore.build(tmp_path / "store", documents, StoreOptions("none"))
    with pytest.raises(UserError, match=r"store lacks 12 of the 12 documents"):
        read_data(options, tokenizer)
    corpus = [{"doc_id": f"{doc_id}#0", "text": text} for doc_id, text in texts.items()]
    (tmp_path / "data").mkdir()
    rows = [{"query": f"remedy{n}", "relevant_doc_ids": [f"d{n}#0"]} for n in range(12)]
    options = Options(
        data=write_data(tmp_path / "data", corpus, train=rows[:8], eval=rows[8:]), store=str(tmp_path / "store"), k=2
    )
    assert read_data(options, tokenizer).search(["remedy4"])[0] == ["d4#0"]
