"""Guidance: weights by hand, and which step shows what."""

from dataclasses import replace

import pytest

from forage.agent.episode import append_episodes, read_episodes
from forage.errors import UserError
from forage.grpo.guidance import Demonstrations, open_guide, weight_at
from forage.grpo.options import GuidanceOptions
from tests.factories import EPISODE


def shown(tmp_path, *questions):
    path = tmp_path / "demonstrations.jsonl"
    append_episodes(path, [replace(EPISODE, id=f"{q}/0", question_id=q) for q in questions])
    return GuidanceOptions(path, demonstrations_per_step=2)


def read(path):
    return list(read_episodes(path))


def test_the_weight_falls_by_hand_or_stays():
    falling = GuidanceOptions(demonstration_weight=0.2, demonstration_steps=4)
    assert [weight_at(step, falling) for step in range(6)] == pytest.approx([0.2, 0.15, 0.1, 0.05, 0, 0])
    assert weight_at(1000, GuidanceOptions(demonstration_weight=0.2)) == 0.2


def test_each_step_shows_the_next_ones_and_a_round_shows_all(tmp_path):
    guide = open_guide(shown(tmp_path, "a", "b", "c", "d"), 1, read)
    first, second, again = (guide.at(step, {}) for step in (0, 1, 0))
    assert {e.question_id for s in (first, second) for e in s.episodes} == {"a", "b", "c", "d"}
    assert first == again
    assert first.weight == 0.2


def test_nothing_is_shown_without_a_file_or_once_the_weight_is_gone(tmp_path):
    assert open_guide(GuidanceOptions(), 1, read).at(0, {}) == Demonstrations()
    gone = replace(shown(tmp_path, "a"), demonstration_steps=3)
    assert open_guide(gone, 1, read).at(2, {}).episodes
    assert open_guide(gone, 1, read).at(3, {}) == Demonstrations()


def test_only_what_the_policy_fails_at_is_shown_where_that_is_asked_for(tmp_path):
    """b failed, c succeeded, d has no demonstration, and a is not of this step."""
    options = replace(shown(tmp_path, "a", "b", "c"), demonstrate_below=0.5, demonstration_steps=4)
    found = open_guide(options, 1, read).at(2, {"b": 0.49, "c": 0.5, "d": 0.1})
    assert [episode.question_id for episode in found.episodes] == ["b"]
    assert found.weight == pytest.approx(0.1)
    assert open_guide(options, 1, read).at(2, {"c": 0.9}).episodes == []


def test_bad_options_say_so(tmp_path):
    with pytest.raises(UserError, match=r"none.jsonl does not exist; sft_train.py writes such a file"):
        GuidanceOptions(tmp_path / "none.jsonl").check()
    with pytest.raises(UserError, match="demonstration-weight"):
        GuidanceOptions(demonstration_weight=-1).check()
    with pytest.raises(UserError, match="demonstrations-per-step"):
        GuidanceOptions(demonstrations_per_step=0).check()
