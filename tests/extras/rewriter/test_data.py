"""Data of the rewriter: bad rows and files, and the split."""

import pytest
from transformers import AutoTokenizer

from forage.errors import UserError
from forage.extras.rewriter.data import read_data
from forage.extras.rewriter.options import Options
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


def test_without_eval_a_fifth_is_held_out_by_document(tmp_path, tokenizer):
    corpus = [{"doc_id": f"d{n}", "text": f"t{n}"} for n in range(10)]
    rows = [{"query": f"{word} {n}", "relevant_doc_ids": [f"d{n}"]} for n in range(10) for word in ("who", "what")]
    data = read_data(Options(data=write_data(tmp_path, corpus, train=rows), eval_questions=0), tokenizer)
    assert (len(data.train), len(data.held_out)) == (16, 4)
    held = {row.relevant_doc_ids for row in data.held_out}
    assert not held & {row.relevant_doc_ids for row in data.train}


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
    with pytest.raises(UserError, match=says):
        read_data(Options(data=write_data(tmp_path, corpus, train=rows, eval=[FLU])), tokenizer)
