"""Files that are whole or not there, folders other users can read, locks, and JSON Lines."""

import errno
import json

import pytest

from forage.files import (
    json_lines,
    replacing,
    replacing_folder,
    write_jsonl,
)
from tests.refusals import refused


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


def test_broken_lines_are_raised_or_collected(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"n": 1}, {"n": 2}])
    path.write_text(path.read_text() + "\n{broken\n" + json.dumps({"n": 3}))
    with refused(r"rows\.jsonl:4: not JSON .*; fix or delete that line"):
        list(json_lines(path))
    broken = []
    assert [(number, row["n"]) for number, row in json_lines(path, broken)] == [(1, 1), (2, 2), (5, 3)]
    assert [line.split(" (")[0] for line in broken] == [f"{path}:4: not JSON"]


def write(folder, text, *, overwrite=True):
    with replacing_folder(folder, overwrite=overwrite) as partial:
        (partial / "file").write_text(text)


@pytest.mark.parametrize("at_one_stroke", [True, False])
def test_a_new_folder_in_the_place_of_an_old_one(tmp_path, monkeypatch, at_one_stroke):
    if not at_one_stroke:
        monkeypatch.setattr("forage.files.exchange", lambda one, other: False)
    folder = tmp_path / "policy"
    for text in ("old", "new"):
        write(folder, text)
        assert (folder / "file").read_text() == text
    assert list(tmp_path.iterdir()) == [folder]
    with pytest.raises(OSError, match="not empty"):
        write(folder, "other", overwrite=False)
    assert (folder / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    write(tmp_path / "disk" / "policy", "old")
    (tmp_path / "policy").symlink_to(tmp_path / "disk" / "policy")
    write(tmp_path / "policy", "new")
    assert (tmp_path / "policy").is_symlink()
    assert (tmp_path / "disk" / "policy" / "file").read_text() == "new"


def test_an_error_of_a_full_disk_names_the_file_or_folder(tmp_path):
    """safetensors and tokenizers have the system's number only in a message."""
    for raised in (OSError(errno.ENOSPC, "No space left"), Exception("I/O error: full (os error 28)")):
        with pytest.raises(OSError, match="No space left") as caught, replacing_folder(tmp_path / "policy"):
            raise raised
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "policy"))
    with pytest.raises(ValueError, match="something else"), replacing_folder(tmp_path / "policy"):
        raise ValueError("something else")
