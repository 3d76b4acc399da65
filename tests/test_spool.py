"""The spool: a list in a file, that leaves nothing behind; groups in the order of their first."""

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.data.records import Document
from forage.spool import Spool, digest, grouped, new_rows, part


def spooled(folder, rows):
    spool = Spool(folder)
    for row in rows:
        spool.append(row)
    return spool


def test_a_spool_is_read_as_a_list(tmp_path):
    rows = [Document(f"d{n}", "Gout \ud83d", "é\n" * n, sections=(0, n)) for n in range(9)]
    spool = spooled(tmp_path, rows)
    assert list(spool) == rows
    assert list(spool) == rows  # again
    assert (len(spool), spool[0], spool[-1], spool[2:4]) == (9, rows[0], rows[8], rows[2:4])
    spool.append("more")
    assert list(spool)[8:] == [rows[8], "more"]
    with pytest.raises(IndexError):
        spool[10]


def test_a_part_has_the_chosen_rows(tmp_path):
    chosen = part(spooled(tmp_path, "abcde"), [1, 3, 1])
    assert isinstance(chosen, Spool)
    assert list(chosen) == ["b", "d", "b"] == part(list("abcde"), [1, 3, 1])


def test_its_file_has_no_name_and_lies_where_there_is_a_folder(tmp_path):
    spool = spooled(tmp_path / "not" / "there", ["a"])
    assert spool.folder == tmp_path
    assert list(tmp_path.iterdir()) == []
    assert new_rows(None) == []


def test_memory_holds_no_text(tmp_path):
    spool = Spool(tmp_path)
    tracemalloc.start()
    for number in range(2_000):
        spool.append(f"{number} " * 2_000)
    sizes = sum(len(text) for text in spool)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sizes > 16 * 2**20
    assert peak < 2**20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
def test_a_full_disk_names_the_folder(tmp_path):
    spool = Spool(tmp_path)
    os.dup2(os.open("/dev/full", os.O_RDWR), spool.file.fileno())
    with pytest.raises(OSError, match="No space left") as caught:
        spool.append("a" * 1_000_000)
    assert caught.value.filename == str(tmp_path)


def test_groups_by_hand():
    assert list(grouped("abacb")) == [[0, 2], [1, 4], [3]]
    assert list(grouped([])) == []


@given(st.lists(st.text(max_size=2)))
def test_groups_are_those_of_a_dict_of_lists(keys):
    expected = {}
    for place, key in enumerate(keys):
        expected.setdefault(key, []).append(place)
    assert list(grouped(keys)) == list(expected.values())


def test_digests_tell_halves_of_emoji_apart():
    assert len({digest(text) for text in ("a", "b", "\ud83d", "\ud83e", "")}) == 5
