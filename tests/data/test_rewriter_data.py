"""The rewriter's files: out, back in, and every bad row named."""

import json

import pytest

from forage.data.chunking import Chunk
from forage.data.records import Question
from forage.data.rewriter_data import export_rewriter_data, import_rewriter_data
from forage.errors import UserError

CHUNKS = [Chunk("d", "Gout", "A sore toe.", 0, 11, 0, 2), Chunk("d", "Gout", "Crystals.", 11, 20, 1, 2)]
TRAIN = [Question("q", "What is gout?", "Crystals.", relevant_doc_ids=("d",), relevant_chunk_ids=("d#1",))]


def test_what_is_exported_can_be_imported(tmp_path):
    export_rewriter_data(tmp_path, CHUNKS, TRAIN, TRAIN)
    assert json.loads((tmp_path / "pubmed_corpus.json").read_text()) == [
        {"doc_id": "d#0", "text": "Gout\nA sore toe."},
        {"doc_id": "d#1", "text": "Gout\nCrystals."},
    ]
    line = '{"query": "What is gout?", "relevant_doc_ids": ["d#1"]}\n'
    assert (tmp_path / "train.jsonl").read_text() == (tmp_path / "eval.jsonl").read_text() == line
    data = import_rewriter_data(tmp_path / "train.jsonl", tmp_path / "pubmed_corpus.json")
    assert [(d.id, d.text) for d in data.documents] == [("d#0", "Gout\nA sore toe."), ("d#1", "Gout\nCrystals.")]
    assert [(q.question, q.relevant_doc_ids) for q in data.questions] == [("What is gout?", ("d#1",))]
    assert data.problems == []


def write(tmp_path, corpus, lines):
    (tmp_path / "c.json").write_text(corpus if isinstance(corpus, str) else json.dumps(corpus))
    (tmp_path / "t.jsonl").write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return tmp_path / "t.jsonl", tmp_path / "c.json"


CORPUS = [{"doc_id": "a", "text": "A"}, {"doc_id": "b", "text": "B"}]
GOOD = {"query": "q", "relevant_doc_ids": ["a"]}


@pytest.mark.parametrize(
    ("corpus", "rows", "says"),
    [
        (CORPUS, ["{"], "no usable query among 1 rows .*t.jsonl:1: not JSON"),
        (CORPUS, [{"query": "q", "relevant_doc_ids": ["z"]}], "no usable query"),
        (CORPUS, [], "no usable query"),
        ("{", [GOOD], "c.json can't be read as JSON"),
        ({}, [GOOD], "must be a JSON list"),
        ([], [GOOD], "no usable document"),
    ],
)
def test_what_leaves_nothing_to_train_on_is_an_error(tmp_path, corpus, rows, says):
    with pytest.raises(UserError, match=says):
        import_rewriter_data(*write(tmp_path, corpus, rows))
