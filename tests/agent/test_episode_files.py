"""Episodes: their JSONL, a torn last line, and that compressing loses nothing, whenever it is interrupted."""

import gzip
from dataclasses import replace

import pytest

from forage.agent.episode import append_episodes, compress, episode_files, from_json, is_written, read_episodes, to_json
from tests.factories import EPISODE
from tests.refusals import refused

TWO = [EPISODE, replace(EPISODE, id="q/1")]


def test_a_compressed_file_is_read_by_either_name(tmp_path):
    path = tmp_path / "worker.jsonl"
    append_episodes(path, TWO)
    lines = path.read_bytes()
    compress(path)
    assert [found.name for found in tmp_path.iterdir()] == ["worker.jsonl.gz"]
    assert gzip.decompress((tmp_path / "worker.jsonl.gz").read_bytes()) == lines  # still one line an episode
    assert list(read_episodes(path)) == list(read_episodes(tmp_path / "worker.jsonl.gz")) == TWO
    assert is_written(path)
    assert not is_written(tmp_path / "other.jsonl")


@pytest.mark.parametrize("packed", [False, True])
def test_a_hole_of_zero_bytes_is_an_error_and_not_the_end(tmp_path, packed):
    """A power cut may leave it where the file's length was on the disk before its contents."""
    path = tmp_path / "worker.jsonl"
    append_episodes(path, TWO * 2)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + bytes(len(lines[1]) - 1) + b"\n" + lines[2])
    if packed:
        compress(path)
    with refused(r"worker.jsonl(.gz)?:2: not an episode"):
        list(read_episodes(path))


def test_a_killed_process_leaves_a_pair_that_counts_once(tmp_path):
    path = tmp_path / "worker.jsonl"
    append_episodes(path, TWO)
    lines = path.read_bytes()
    compress(path)
    path.write_bytes(lines)  # as if it had been killed before the plain one went
    (tmp_path / ".worker.jsonl.gz.7.forage").write_bytes(b"half")
    assert [found.name for found in episode_files(tmp_path)] == ["worker.jsonl.gz"]
    compress(path)
    assert not path.exists()


def test_what_a_late_worker_wrote_is_kept(tmp_path):
    path = tmp_path / "worker.jsonl"
    append_episodes(path, TWO)
    compress(path)
    append_episodes(path, TWO[:1])
    compress(path)
    assert path.exists()
    assert list(read_episodes(path)) == TWO


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "worker.jsonl"
    append_episodes(path, TWO)
    compress(path)
    packed = tmp_path / "worker.jsonl.gz"
    for damaged in (packed.read_bytes()[:-9], b"no gzip", packed.read_bytes()[:40] + b"\xff" * 60):
        packed.write_bytes(damaged)
        with refused(r"worker\.jsonl\.gz(:1)? (is damaged|: not an episode)"):
            list(read_episodes(path))


def test_a_line_and_back():
    assert from_json(to_json(EPISODE)) == EPISODE
    assert "\n" not in to_json(replace(EPISODE, answer="two\nlines"))


def test_a_torn_last_line_is_left_out_and_written_over(tmp_path):
    path = tmp_path / "episodes" / "w.jsonl"
    append_episodes(path, [EPISODE, replace(EPISODE, id="q/1")])
    whole = path.read_bytes()
    for cut in (1, 10, len(whole) // 2 - 2):
        path.write_bytes(whole[:-cut])
        assert [episode.id for episode in read_episodes(path)] == ["q/0"]
        append_episodes(path, [replace(EPISODE, id="q/2")])
        assert [episode.id for episode in read_episodes(path)] == ["q/0", "q/2"]
    path.write_bytes(whole[:5])
    assert list(read_episodes(path)) == []
    append_episodes(path, [EPISODE])
    assert list(read_episodes(path)) == [EPISODE]
