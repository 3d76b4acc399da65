"""Beside TRL: which of its batch sizes and of our ways counts, and that both train the same adapter."""

from bench import update
from bench.update import lengthened
from forage.agent.episode import Turn, write_episodes
from tests.factories import EPISODE


def test_an_update_is_measured(tiny, tmp_path):
    write_episodes(tmp_path / "episodes.jsonl", update.taught([EPISODE, EPISODE], 1))
    found = update.measure(tiny / "policy", tmp_path / "episodes.jsonl", "shared 512")
    assert found.rate > 0


def test_a_lengthened_prompt_repeats_itself():
    longer = lengthened(EPISODE, 5)  # its prompt is 1 2 3
    assert longer.ids == (1, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 5)
    assert longer.mask == (0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1)
    assert longer.logprobs == (0.0,) * 2 + EPISODE.logprobs
    assert longer.turns == (Turn(5, 7), Turn(10, 12))
    assert lengthened(EPISODE, 2) == EPISODE
