"""Files that are whole or not there, folders other users can read, locks, and JSON Lines."""

import json

import pytest

from forage.errors import UserError
from forage.files import json_lines, locked, replacing, replacing_folder, write_jsonl


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


def test_what_is_published_can_be_read_by_other_users(tmp_path):
    with replacing_folder(tmp_path / "made") as partial:
        (partial / "inside").mkdir()
        (partial / "inside" / "weights").write_text("w")
        (partial / "inside" / "weights").chmod(0o600)  # as safetensors leaves it
    paths = [tmp_path / "made", tmp_path / "made" / "inside", tmp_path / "made" / "inside" / "weights"]
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o755, 0o755, 0o644]


def test_a_lock_is_held_by_one_and_let_go_of_after(tmp_path):
    path = tmp_path / ".lock"
    with locked(path, "in use"), pytest.raises(UserError, match="in use; wait"), locked(path, "in use; wait"):
        pass
    with locked(tmp_path / ".lock", "in use; wait"):
        pass


def test_broken_lines_are_raised_or_collected(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert write_jsonl(path, [{"n": 1}, {"n": 2}]) == 2
    path.write_text(path.read_text() + "\n{broken\n" + json.dumps({"n": 3}))
    with pytest.raises(UserError, match=r"rows\.jsonl:4: not JSON .*; fix or delete that line"):
        list(json_lines(path))
    broken = []
    assert [(number, row["n"]) for number, row in json_lines(path, broken)] == [(1, 1), (2, 2), (5, 3)]
    assert [line.split(" (")[0] for line in broken] == [f"{path}:4: not JSON"]


def test_halves_of_emoji_are_read_and_written_as_question_marks(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "toe \\ud83d pain, \\ud83e\\uddb6 \\\\ud83d"}\n')
    [(_, row)] = json_lines(path)
    assert row == {"text": "toe ? pain, \U0001f9b6 \\ud83d"}
    write_jsonl(path, [{"text": "\ud83d"}])
    assert path.read_text() == '{"text": "?"}\n'


def test_deep_json_and_huge_numbers_are_told_by_their_line(tmp_path):
    path = tmp_path / "a.jsonl"
    for line in ("[" * 100_000, "9" * 5_000):
        path.write_text(f"1\n{line}\n")
        with pytest.raises(UserError, match=r"a.jsonl:2: not JSON"):
            list(json_lines(path))
