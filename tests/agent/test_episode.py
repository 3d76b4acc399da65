"""Episodes: their JSONL, a torn last line, and what they say of themselves."""

from dataclasses import replace

import pytest

from forage.agent.episode import append_episodes, from_json, read_episodes, to_json
from forage.errors import UserError
from tests.factories import EPISODE


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


def test_a_broken_line_in_the_midst_is_named(tmp_path):
    path = tmp_path / "w.jsonl"
    append_episodes(path, [EPISODE])
    path.write_bytes(b'{"id": 1}\n' + path.read_bytes())
    with pytest.raises(UserError, match=r"w\.jsonl:1: not an episode"):
        list(read_episodes(path))
