"""Data of the rewriter: bad rows and files, and the search by words or in a store that exists."""

import pytest
from transformers import AutoTokenizer

from forage.data.records import Document
from forage.extras.rewriter.data import read_data
from forage.extras.rewriter.options import Options
from tests.factories import plain_store
from tests.refusals import refused
from tests.tiny_rewriter import write_data


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return AutoTokenizer.from_pretrained(model_folder)


CORPUS = [{"doc_id": "a", "text": "Gout is sore."}, {"doc_id": "b", "text": "Flu is hot."}]
GOUT = {"query": "What is gout?", "relevant_doc_ids": ["a"]}
FLU = {"query": "What is flu?", "relevant_doc_ids": ["b"]}


def test_bad_rows_are_counted_by_what_they_lack(tmp_path, tokenizer, capsys):
    bad = [{"query": "", "relevant_doc_ids": ["a"]}, {"query": "x"}, {"query": "y", "relevant_doc_ids": ["z"]}, 7]
    folder = write_data(
        tmp_path, CORPUS, train=[GOUT, *bad], eval=[FLU, {"query": 7}, GOUT | {"query": "what is Gout"}]
    )
    data = read_data(Options(data=folder), tokenizer)
    printed = capsys.readouterr().out
    assert "5 rows left out: no query, or no relevant document that is in pubmed_corpus.json" in printed
    assert "1 rows left out: held out, but trained on too" in printed
    assert [row.query for row in data.train] == ["What is gout?"]
    assert [row.query for row in data.held_out] == ["What is flu?"]


@pytest.mark.parametrize(
    ("corpus", "rows", "says"),
    [
        (CORPUS, ["{"], "train.jsonl:1: not JSON"),
        (CORPUS, [{"query": "q", "relevant_doc_ids": ["z"]}], "0 training queries"),
        ([{"text": "A"}], [GOUT], "KeyError: 'doc_id'.; it must be a JSON list"),
        ({}, [GOUT], "pubmed_corpus.json has no document with a text"),
    ],
)
def test_what_leaves_nothing_to_train_on_is_an_error(tmp_path, tokenizer, corpus, rows, says):
    with refused(says):
        read_data(Options(data=write_data(tmp_path, corpus, train=rows, eval=[FLU])), tokenizer)


def test_an_existing_store_is_searched_by_its_chunks(tiny_rewriter, tmp_path, tokenizer):
    options = Options(data=tiny_rewriter / "data", store=str(tmp_path / "store"), k=2)
    texts = read_data(Options(data=tiny_rewriter / "data"), tokenizer).texts
    documents = [Document(doc_id, "", text) for doc_id, text in texts.items()]
    plain_store(tmp_path / "store", documents)
    with refused(r"store lacks 12 of the 12 documents"):
        read_data(options, tokenizer)
    corpus = [{"doc_id": f"{doc_id}#0", "text": text} for doc_id, text in texts.items()]
    (tmp_path / "data").mkdir()
    rows = [{"query": f"remedy{n}", "relevant_doc_ids": [f"d{n}#0"]} for n in range(12)]
    options = Options(
        data=write_data(tmp_path / "data", corpus, train=rows[:8], eval=rows[8:]), store=str(tmp_path / "store"), k=2
    )
    assert read_data(options, tokenizer).search(["remedy4"])[0] == ["d4#0"]
