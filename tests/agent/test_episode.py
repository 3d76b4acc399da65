"""Episodes: their JSONL, a torn last line, and what they say of themselves."""

from dataclasses import replace

import pytest

from forage.agent.episode import Episode, Search, Turn, append_episodes, from_json, read_episodes, to_json
from forage.errors import UserError

# The example of Episode's docstring, the prompt's tokens 1 to 3.
EXAMPLE = Episode(
    id="q/0", question_id="q", ids=(1, 2, 3, 4, 5, 6, 7, 8, 9, 5), mask=(0, 0, 0, 1, 1, 0, 0, 0, 1, 1),
    logprobs=(0.0, 0.0, 0.0, -0.2, -0.1, 0.0, 0.0, 0.0, -0.7, 0.0), turns=(Turn(3, 5), Turn(8, 10)),
    searches=(Search(0, "gout", ("a", "b")), Search(0, "toe", ("b", "c"))), answer="Rest – and “ice”.", stop="answer",
    adapter="v000003", rewards={"mrr": 0.5}, reward=0.5, seconds={"total": 1.5},
)  # fmt: skip


def test_what_it_says_of_itself():
    assert EXAMPLE.sampled == 4
    assert EXAMPLE.hits == ("a", "b", "c")
    assert EXAMPLE.well_formed
    assert not replace(EXAMPLE, searches=()).well_formed
    assert not replace(EXAMPLE, stop="turns").well_formed
    assert not replace(EXAMPLE, turns=(Turn(3, 5, ("bad_json",)), Turn(8, 10))).well_formed


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="10 ids, 9 mask"):
        replace(EXAMPLE, mask=EXAMPLE.mask[1:])


def test_a_line_and_back():
    assert from_json(to_json(EXAMPLE)) == EXAMPLE
    assert "\n" not in to_json(replace(EXAMPLE, answer="two\nlines"))


def test_a_torn_last_line_is_left_out_and_written_over(tmp_path):
    path = tmp_path / "episodes" / "w.jsonl"
    append_episodes(path, [EXAMPLE, replace(EXAMPLE, id="q/1")])
    whole = path.read_bytes()
    for cut in (1, 10, len(whole) // 2 - 2):
        path.write_bytes(whole[:-cut])
        assert [episode.id for episode in read_episodes(path)] == ["q/0"]
        append_episodes(path, [replace(EXAMPLE, id="q/2")])
        assert [episode.id for episode in read_episodes(path)] == ["q/0", "q/2"]
    path.write_bytes(whole[:5])
    assert list(read_episodes(path)) == []
    append_episodes(path, [EXAMPLE])
    assert list(read_episodes(path)) == [EXAMPLE]


def test_a_broken_line_in_the_midst_is_named(tmp_path):
    path = tmp_path / "w.jsonl"
    append_episodes(path, [EXAMPLE])
    path.write_bytes(b'{"id": 1}\n' + path.read_bytes())
    with pytest.raises(UserError, match=r"w\.jsonl:1: not an episode"):
        list(read_episodes(path))
