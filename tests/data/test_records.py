"""Files that are whole or not there, and errors as one line."""

import pytest

from bench.report import Bar, finish
from forage.data.records import Document, Question, clean, read_documents, read_questions
from forage.errors import UserError
from forage.files import json_lines, replacing, replacing_folder, write_jsonl


def test_what_is_written_is_read_back(tmp_path):
    documents = [Document("d", "Gout", "Tophi – é", "http://x.example/", "page", (0, 7)), Document("e", "", "x")]
    questions = [Question("q", "What?", "That.", "information", "Gout", ("d",), ("d#0", "d#1"))]
    assert write_jsonl(tmp_path / "d.jsonl", documents) == 2
    write_jsonl(tmp_path / "new" / "q.jsonl", questions)
    assert read_documents(tmp_path / "d.jsonl") == documents
    assert read_questions(tmp_path / "new" / "q.jsonl") == questions


def test_unknown_keys_are_left_aside_and_missing_ones_told(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"id": "d", "title": "t", "text": "x", "newer": 1}\n\n{"id": "e"}\n')
    rows = json_lines(tmp_path / "d.jsonl")
    assert [number for number, _ in rows] == [1, 3]
    with pytest.raises(UserError, match=r"d\.jsonl:3: no title, text"):
        read_documents(tmp_path / "d.jsonl")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail_half_way():
        with replacing(path) as file:
            file.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_clean_keeps_lines_and_single_spaces():
    assert clean("  Key   points\n \n\t- A\u00a0b \n") == "Key points\n- A b"


def test_bars_decide_the_exit_status(capsys):
    with pytest.raises(SystemExit) as ended:
        finish([Bar("speed", 2.5, 2), Bar("quality", 1, 1)])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        finish([Bar("speed", 2.5, 2), Bar("quality", 0.99, 1)])
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines()[-1] == "speed 2.5 (bar 2) ok; quality 0.99 (bar 1) SHORT"


def test_what_is_published_can_be_read_by_other_users(tmp_path):
    with replacing_folder(tmp_path / "made") as partial:
        (partial / "inside").mkdir()
        (partial / "inside" / "weights").write_text("w")
        (partial / "inside" / "weights").chmod(0o600)  # as safetensors leaves it
    paths = [tmp_path / "made", tmp_path / "made" / "inside", tmp_path / "made" / "inside" / "weights"]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o755, 0o755, 0o644]
