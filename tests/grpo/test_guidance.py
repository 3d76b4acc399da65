"""Guidance: weights by hand, and which step shows what."""

from dataclasses import replace

from forage.agent.episode import append_episodes, read_episodes
from forage.grpo.guidance import Demonstrations, open_guide
from forage.grpo.options import GuidanceOptions
from tests.factories import EPISODE


def shown(tmp_path, *questions):
    path = tmp_path / "demonstrations.jsonl"
    append_episodes(path, [replace(EPISODE, id=f"{q}/0", question_id=q) for q in questions])
    return GuidanceOptions(path, demonstrations_per_step=2)


def read(path):
    return list(read_episodes(path))


def test_each_step_shows_the_next_ones_and_a_round_shows_all(tmp_path):
    guide = open_guide(shown(tmp_path, "a", "b", "c", "d"), 1, read)
    first, second, again = (guide.at(step) for step in (0, 1, 0))
    assert {e.question_id for s in (first, second) for e in s.episodes} == {"a", "b", "c", "d"}
    assert first == again
    assert first.weight == 0.2


def test_nothing_is_shown_without_a_file_or_a_weight(tmp_path):
    assert open_guide(GuidanceOptions(), 1, read).at(0) == Demonstrations()
    assert open_guide(replace(shown(tmp_path, "a"), demonstration_weight=0.0), 1, read).at(0) == Demonstrations()
