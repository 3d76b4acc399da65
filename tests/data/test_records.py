"""Documents and questions: written, read back, and one line for what is missing."""

from forage.data.records import Document, Question, clean, read_documents, read_questions
from forage.files import json_lines, write_jsonl
from tests.refusals import refused


def test_what_is_written_is_read_back(tmp_path):
    documents = [Document("d", "Gout", "Tophi – é", "http://x.example/", "page", (0, 7)), Document("e", "", "x")]
    questions = [Question("q", "What?", "That.", "information", "Gout", ("d",), ("d#0", "d#1"))]
    write_jsonl(tmp_path / "d.jsonl", documents)
    write_jsonl(tmp_path / "new" / "q.jsonl", questions)
    assert read_documents(tmp_path / "d.jsonl") == documents
    assert read_questions(tmp_path / "new" / "q.jsonl") == questions


def test_unknown_keys_are_left_aside_and_missing_ones_told(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"id": "d", "title": "t", "text": "x", "newer": 1}\n\n{"id": "e"}\n')
    rows = json_lines(tmp_path / "d.jsonl")
    assert [number for number, _ in rows] == [1, 3]
    with refused(r"d\.jsonl:3: not a document \(title: Field required\); mend"):
        read_documents(tmp_path / "d.jsonl")


def test_clean_keeps_lines_and_single_spaces():
    assert clean("  Key   points\n \n\t- A\u00a0b \n") == "Key points\n- A b"


def test_two_questions_of_one_id_are_refused(tmp_path):
    write_jsonl(tmp_path / "q.jsonl", [Question("a", text, "") for text in ("One?", "Two?")])
    with refused(r"q\.jsonl: 2 questions have the id 'a'"):
        read_questions(tmp_path / "q.jsonl")
