"""Data of the rewriter: bad rows, the split, and where data is looked for."""

import pytest
from transformers import AutoTokenizer

from forage.errors import UserError
from forage.rewriter.data import find_data, read_data
from forage.rewriter.options import Options
from tests.tiny_rewriter import write_data


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return AutoTokenizer.from_pretrained(model_folder)


CORPUS = [
    {"doc_id": "a", "text": "Gout is sore."},
    {"doc_id": "b", "text": "Flu is hot."},
    {"doc_id": "a", "text": "x"},
]
GOUT = {"query": "What is gout?", "relevant_doc_ids": ["a"]}
FLU = {"query": "What is flu?", "relevant_doc_ids": ["b"]}


def test_bad_rows_are_reported_by_line_and_counted(tmp_path, tokenizer, capsys):
    bad = [{"query": "", "relevant_doc_ids": ["a"]}, {"query": "x"}, {"query": "y", "relevant_doc_ids": ["z"]}]
    folder = write_data(
        tmp_path, CORPUS, train=[GOUT, *bad, GOUT], eval=[FLU, {"query": 7}, GOUT | {"query": "what is Gout"}]
    )
    data = read_data(Options(data=folder), tokenizer)
    printed = capsys.readouterr().out
    for words in ("entry 3 repeats doc_id 'a'", "train.jsonl:2: no query", "train.jsonl:3: no query or no",
                  "train.jsonl:4: none of its", "train.jsonl:5: duplicate query", "eval.jsonl:2: no query or no",
                  "left out 1 queries that are also trained on", "7 rows with problems"):  # fmt: skip
        assert words in printed
    assert [row.query for row in data.train] == ["What is gout?"]
    assert [row.query for row in data.held_out] == ["What is flu?"]


def test_without_eval_a_fifth_is_held_out_by_document(tmp_path, tokenizer):
    corpus = [{"doc_id": f"d{n}", "text": f"t{n}"} for n in range(10)]
    rows = [{"query": f"{word} {n}", "relevant_doc_ids": [f"d{n}"]} for n in range(10) for word in ("who", "what")]
    data = read_data(Options(data=write_data(tmp_path, corpus, train=rows), eval_questions=0), tokenizer)
    assert (len(data.train), len(data.held_out)) == (16, 4)
    held = {row.relevant_doc_ids for row in data.held_out}
    assert not held & {row.relevant_doc_ids for row in data.train}


def test_where_data_is_looked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = Options(run_dir=tmp_path / "run")
    sample = find_data(options)
    assert sample == tmp_path / "run" / "sample"
    assert "sample data" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"here/train.jsonl is missing; --data needs"):
        find_data(Options(data=tmp_path / "here"))
    (tmp_path / "data" / "rewriter").mkdir(parents=True)
    write_data(tmp_path / "data" / "rewriter", CORPUS, train=[GOUT])
    assert str(find_data(options)) == "data/rewriter"
    (tmp_path / "data" / "rewriter" / "pubmed_corpus.json").unlink()
    with pytest.raises(UserError, match=r"data/rewriter has only train\.jsonl"):
        find_data(options)
