"""Beside TRL: which of its batch sizes and of our ways counts, and that both train the same adapter."""

from dataclasses import replace

import pytest

from bench import update
from bench.update import Figures, lengthened
from forage.agent.episode import Turn, write_episodes
from forage.errors import UserError
from forage.policy.adapters import newest_adapter
from tests.factories import EPISODE


def ends_with(status, main, options):
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == status


def test_the_best_speed_and_the_least_memory_of_each_count(tiny, tmp_path, monkeypatch, capsys):
    """Our fastest is 3 times as fast as its fastest, and our leanest needs half of what its leanest does."""
    ours = {"shared 2048": Figures(300, 400), "shared 512": Figures(200, 100), "plain 2048": Figures(150, 500)}
    theirs = {1: Figures(40, 200), 8: Figures(100, 900)}
    asked = []
    monkeypatch.setattr(update, "alone", lambda measure, policy, path, way: ours[way])
    monkeypatch.setattr(update, "trl", lambda what, **flags: asked.append(flags) or vars(theirs[flags["batch"]]))
    write_episodes(tmp_path / "episodes.jsonl", [EPISODE])
    options = update.Options(tiny / "policy", tmp_path / "episodes.jsonl", ways=tuple(ours), trl=(1, 8))
    ends_with(0, update.main, options)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "shared / plain tokens/s, the faster budget of each 2 (bar 1) ok; ours / TRL tokens/s, the fastest of each 3 "
        "(bar 3) ok; TRL / our peak memory, the leanest of each 2 (bar 2) ok"
    )
    assert {flags["adapter"] for flags in asked} == {newest_adapter(tiny / "policy")}  # both train the same
    assert {flags["dtype"] for flags in asked} <= {"float32", "bfloat16"}
    with pytest.raises(UserError, match="--ways shared 3: choose among shared 4096, "):
        replace(options, ways=("shared 3",)).check()


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
