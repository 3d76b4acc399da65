"""The log of each question's outcome: read back, whole after a kill, refused if it was damaged."""

import os
import random
from dataclasses import replace

import pytest

from forage.agent.episode import append_episodes
from forage.errors import UserError
from forage.evaluation.outcomes import Cost, Outcome, OutcomeLog
from tests.factories import EPISODE as EXAMPLE


def outcome(name, tried=2, chosen=1):
    episodes = tuple(replace(EXAMPLE, id=f"{name}/{n}", question_id=name) for n in range(tried))
    return Outcome(episodes[chosen], episodes, 10, 20)


def write(log, given, latency=1.0, seconds=1.0, plain=(), file="a.jsonl"):
    log.append(file, Cost.of(given, latency, seconds, plain), given.tried)


@pytest.fixture
def log(tmp_path):
    log = OutcomeLog(tmp_path, "warm/best_of:2")
    assert log.done() == set()
    return log


def test_what_is_written_is_read_back_from_all_files(log):
    write(log, outcome("p"), 2.0, 1.0)
    write(log, outcome("q", 3, 0), 4.0, 2.0, file="b.jsonl")
    write(log, outcome("p", 3), file="b.jsonl")  # by a process that took the first one for dead
    assert log.done() == {"p", "q"}
    p, q = (log.results()[name] for name in "pq")
    assert (p.episode, q.episode.id) == (outcome("p").episode, "q/0")
    assert (q.cost.tried, q.cost.chosen, q.cost.searches, q.cost.turns) == (3, 0, 6, 6)
    assert (q.cost.sampled, q.cost.read) == (3 * 4 + 10, 3 * 6 + 20)
    assert (q.cost.latency, q.cost.seconds) == (4.0, 2.0)
    append_episodes(log.episodes / "a.jsonl", outcome("r").tried)  # not answered yet
    assert {name: [e.id for e in tried] for name, tried in log.candidates().items()} == {
        "p": ["p/0", "p/1"], "q": ["q/0", "q/1", "q/2"],
    }  # fmt: skip
    assert log.episodes.name == "best_of_2"


def test_plain_samples_are_read_back_by_their_place(log):
    write(log, outcome("p", 3), 1, 9, (2.0, None, 4.0))
    write(log, outcome("q"))
    write(log, outcome("r"), plain=(None, 0.0))
    append_episodes(log.episodes / "a.jsonl", outcome("s").tried)  # not answered yet
    assert [(e.id, seconds) for e, seconds in log.plain_samples()] == [("p/0", 2), ("p/2", 4), ("r/1", 0)]
    assert log.results()["p"].cost.plain_seconds == (2.0, None, 4.0)


def test_killed_at_any_byte_it_goes_on_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the cuts are made here, no machine loses power
    names, choose = [f"q{n}" for n in range(4)], random.Random(3)
    for trial in range(40):
        log, life = OutcomeLog(tmp_path / str(trial), "s"), 0
        while missing := [name for name in names if name not in log.done()]:
            file = f"{life}.jsonl"
            write(log, outcome(missing[0]), file=file)
            # The last line, or if it had not been begun the episodes, are cut as a killed process leaves them.
            part = choose.choice([log.outcomes, log.episodes, None, None])
            if part == log.episodes:
                lines = (log.outcomes / file).read_bytes().splitlines(keepends=True)
                (log.outcomes / file).write_bytes(b"".join(lines[:-1]))
            if part:
                text = (part / file).read_bytes()
                (part / file).write_bytes(text[: len(text) - choose.randint(1, 100)])
                life += 1
        assert {name: tuple(tried) for name, tried in log.candidates().items()} == {n: outcome(n).tried for n in names}


def test_damage_is_told(log):
    write(log, outcome("p"))
    write(log, outcome("q"))
    lines = (log.episodes / "a.jsonl").read_bytes().splitlines(keepends=True)
    (log.episodes / "a.jsonl").write_bytes(b"".join(lines[1:]))
    with pytest.raises(UserError, match=r"a.jsonl lacks episodes of question p; delete it and .*a.jsonl to play"):
        log.results()
    (log.outcomes / "a.jsonl").write_text('{"question_id": "p"}\n')
    with pytest.raises(UserError, match=r"a.jsonl:1: not an outcome .*; delete that line"):
        log.done()
