"""The log of each question's outcome: read back, cut off if a process was killed, refused if it was damaged."""

import os
import random
from dataclasses import replace

import pytest

from forage.agent.episode import append_episodes, read_episodes
from forage.errors import UserError
from forage.evaluation.outcomes import Outcome, OutcomeLog
from tests.factories import EPISODE as EXAMPLE


def outcome(name, tried=2, chosen=1):
    episodes = tuple(replace(EXAMPLE, id=f"{name}/{n}", question_id=name) for n in range(tried))
    return Outcome(episodes[chosen], episodes, 10, 20)


@pytest.fixture
def log(tmp_path):
    log = OutcomeLog(tmp_path, "warm/best_of")
    assert log.open() == set()
    return log


def test_what_is_written_is_read_back(log):
    log.append(outcome("p"), 2.0, 1.0)
    log.append(outcome("q", 3, 0), 4.0, 2.0)
    assert log.open() == {"p", "q"}
    p, q = (log.results()[name] for name in "pq")
    assert (p.episode.id, q.episode.id) == ("p/1", "q/0")
    assert p.episode == outcome("p").episode
    assert (q.cost.tried, q.cost.chosen, q.cost.searches, q.cost.turns) == (3, 0, 6, 6)
    assert (q.cost.sampled, q.cost.read) == (3 * 4 + 10, 3 * 6 + 20)
    assert (q.cost.latency, q.cost.seconds) == (4.0, 2.0)
    assert [e.id for e in read_episodes(log.episodes)] == ["p/0", "p/1", "q/0", "q/1", "q/2"]
    append_episodes(log.episodes, outcome("r").tried)  # not answered yet
    assert {name: [e.id for e in tried] for name, tried in log.candidates().items()} == {
        "p": ["p/0", "p/1"], "q": ["q/0", "q/1", "q/2"],
    }  # fmt: skip


def test_plain_samples_are_read_back_by_their_place(log):
    log.append(outcome("p", 3), 1, 9, (2.0, None, 4.0))
    log.append(outcome("q"), 1, 1)  # written before plain samples were marked
    log.append(outcome("r"), 1, 1, (None, 0.0))
    append_episodes(log.episodes, outcome("s").tried)  # not answered yet
    assert [(e.id, seconds) for e, seconds in log.plain_samples()] == [("p/0", 2), ("p/2", 4), ("r/1", 0)]
    assert log.results()["p"].cost.plain_seconds == (2.0, None, 4.0)
    lines = log.outcomes.read_bytes()
    assert log.open() == {"p", "q", "r"}
    assert log.outcomes.read_bytes() == lines


def test_episodes_without_their_line_are_cut_off(log):
    log.append(outcome("p"), 0, 0)
    append_episodes(log.episodes, outcome("q").tried)
    assert log.open() == {"p"}
    assert [e.id for e in read_episodes(log.episodes)] == ["p/0", "p/1"]
    log.append(outcome("q"), 0, 0)
    assert log.results()["q"].episode.id == "q/1"


def test_killed_at_any_byte_it_goes_on_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the cuts are made here, no machine loses power
    names = [f"q{n}" for n in range(4)]
    whole = OutcomeLog(tmp_path / "whole", "s")
    for name in names:
        whole.append(outcome(name), 1, 1)
    choose = random.Random(3)
    for trial in range(40):
        log = OutcomeLog(tmp_path / str(trial), "s")
        while missing := [name for name in names if name not in log.open()]:
            log.append(outcome(missing[0]), 1, 1)
            # The last line, or if it had not been begun the episodes, are cut as a killed process leaves them.
            part = choose.choice([log.outcomes, log.episodes, None, None])
            if part == log.episodes:
                log.outcomes.write_bytes(b"".join(log.outcomes.read_bytes().splitlines(keepends=True)[:-1]))
            if part:
                text = part.read_bytes()
                part.write_bytes(text[: len(text) - choose.randint(1, 100)])
        assert log.episodes.read_bytes() == whole.episodes.read_bytes()
        assert log.outcomes.read_bytes() == whole.outcomes.read_bytes()


def test_damage_is_told(log):
    log.append(outcome("p"), 0, 0)
    log.append(outcome("q"), 0, 0)
    lines = log.episodes.read_bytes().splitlines(keepends=True)
    log.episodes.write_bytes(b"".join(lines[1:]))
    with pytest.raises(UserError, match=r"has 1 of the 2 episodes of question p; delete it"):
        log.results()
    log.outcomes.write_text('{"question_id": "p"}\n')
    with pytest.raises(UserError, match=r"best_of.jsonl:1: not an outcome .*; delete that line"):
        log.open()
