"""Rows of any data set: columns found or named, files of four kinds, and one line for what can't be read."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from forage.data import qa_rows
from forage.data.options import Columns
from forage.data.qa_rows import QARow, find_columns, read_records, to_rows
from tests.refusals import refused

MEDQUAD = [
    "document_id",
    "document_source",
    "document_url",
    "category",
    "umls_cui",
    "synonyms",
    "question_id",
    "question_focus",
    "question_type",
    "question",
    "answer",
]


def test_medquads_layouts_are_recognised():
    assert find_columns(MEDQUAD, Columns()) == {
        "question": "question", "answer": "answer", "url": "document_url", "id": "question_id",
        "focus": "question_focus", "type": "question_type",
    }  # fmt: skip
    assert find_columns(["qtype", "Question", "Answer"], Columns()) == {
        "question": "Question", "answer": "Answer", "url": "", "id": "", "focus": "", "type": "qtype",
    }  # fmt: skip


def test_a_named_column_wins_and_a_wrong_name_is_told():
    assert find_columns(["question", "text", "answer"], Columns(question_column="text"))["question"] == "text"
    with refused(r"--question-column frage: no such column; the data set has question, answer"):
        find_columns(["question", "answer"], Columns(question_column="frage"))
    with refused("no answer column among question, reply; name it with --answer-column"):
        find_columns(["question", "reply"], Columns())


def test_what_rows_lack_is_counted_and_ids_are_made_unique():
    records = [
        {"id": "a", "question": "Q1", "answer": "A1", "url": "http://x.example/"},
        {"id": "a", "question": " ", "answer": "A2", "url": None},
        {"id": None, "question": "Q3", "answer": None, "url": "http://x.example/"},
        {"question": "Q4", "answer": ["A4", "A5"]},
    ]
    rows, lacking = to_rows(records, Columns())
    assert [row.id for row in rows] == ["a", "a-r2", "row-3", "row-4"]
    assert lacking == {"no question": 1, "no answer": 1, "no url": 2}
    assert rows[0] == QARow("a", "Q1", "A1", "http://x.example/", "", "")
    assert rows[3].answer == "A4"


ROWS = [{"question": "What is gout? é", "answer": "Crystals,\nin a joint"}, {"question": "Q", "answer": ""}]


def write(path):
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    elif path.suffix == ".jsonl":
        path.write_text(text + "\n")
    elif path.suffix == ".csv":
        path.write_text('question,answer\n"What is gout? é","Crystals,\nin a joint"\nQ,\n', encoding="utf-8-sig")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.parquet"])
def test_each_kind_of_file_is_read(tmp_path, name):
    write(tmp_path / name)
    assert list(read_records(str(tmp_path / name), tmp_path)) == ROWS


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"question": 1}\n{"qu\n', r"a\.jsonl:2: not JSON"),
        ("a.jsonl.gz", gzip.compress(b'{"question": 1}\n' * 9999, mtime=0)[:60], "damaged after line"),
        ("a.csv", b"question,answer\nq,a\nq,a,b\n", r"a\.csv:3: more cells than columns; quote a cell with ',' in it"),
        ("b.csv", b"question;answer\nq;a;b\n", r"b\.csv:2: .* with ';' in it"),
        ("c.csv", b'question,answer\nq,a\nq,"open', r"c\.csv can't be read to its end .*, with every quote closed"),
        ("d.csv", b"question,answer\nq,caf\xe9\n", "save it as UTF-8"),
        ("a.parquet", b"no", "not a readable parquet"),
        ("a.txt", b"no", "--dataset-name sample"),
    ],
)
def test_broken_files_give_one_line(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    with refused(says):
        list(read_records(str(tmp_path / name), tmp_path))


def test_a_hub_out_of_reach_gives_one_line_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(qa_rows, "hub_reachable", lambda: False)
    with refused(r"'lavita/MedQuAD' is not in the cache.*--dataset-name sample"):
        read_records("lavita/MedQuAD", tmp_path)
