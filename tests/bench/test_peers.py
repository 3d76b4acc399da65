"""Beside TRL: which of its batch sizes and of our ways counts, and that both train the same adapter."""

from bench import update
from bench.update import with_prompt
from forage.agent.episode import Turn, write_episodes
from tests.factories import EPISODE


def test_an_update_is_measured(tiny, tmp_path):
    write_episodes(tmp_path / "episodes.jsonl", update.taught([EPISODE, EPISODE], 1))
    found = update.measure(tiny / "policy", tmp_path / "episodes.jsonl", "shared 512")
    assert found.rate > 0


def test_an_episode_gets_a_longer_prompt():
    longer = with_prompt(EPISODE, (9, 9, 1, 2, 3))  # its prompt is 1 2 3
    assert longer.ids == (9, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 5)
    assert longer.mask == (0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1)
    assert longer.logprobs == (0.0,) * 5 + EPISODE.logprobs[3:]
    assert longer.turns == (Turn(5, 7), Turn(10, 12))
