"""The log of each question's outcome: read back, whole after a kill, refused if it was damaged."""

import os
import random
from dataclasses import replace

import pytest

from forage.agent.episode import append_episodes
from forage.evaluation.outcomes import Outcome, OutcomeLog
from tests.factories import EPISODE as EXAMPLE
from tests.refusals import refused


def outcome(name, tried=2, chosen=1, seconds=1.0):
    episodes = tuple(replace(EXAMPLE, id=f"{name}/{n}", question_id=name) for n in range(tried))
    return Outcome(episodes[chosen], episodes, 10, 20, seconds=seconds)


@pytest.fixture
def log(tmp_path):
    log = OutcomeLog(tmp_path, "warm/best_of:2")
    assert log.done() == set()
    return log


def test_what_is_written_is_read_back_from_all_files(log):
    log.append("a.jsonl", outcome("p"))
    log.append("b.jsonl", outcome("q", 3, 0, 2.0))
    log.append("b.jsonl", outcome("p", 3))  # by a process that took the first one for dead
    assert log.done() == {"p", "q"}
    append_episodes(log.episodes / "a.jsonl", outcome("r").tried)  # not answered yet
    assert log.results() == {"p": outcome("p"), "q": outcome("q", 3, 0, 2.0)}
    assert log.episodes.name == "best_of_2"


def test_killed_at_any_byte_it_goes_on_to_the_same_end(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the cuts are made here, no machine loses power
    names, choose = [f"q{n}" for n in range(4)], random.Random(3)
    for trial in range(40):
        log, life = OutcomeLog(tmp_path / str(trial), "s"), 0
        while missing := [name for name in names if name not in log.done()]:
            file = f"{life}.jsonl"
            log.append(file, outcome(missing[0]))
            # The last line, or if it had not been begun the episodes, are cut as a killed process leaves them.
            part = choose.choice([log.outcomes, log.episodes, None, None])
            if part == log.episodes:
                lines = (log.outcomes / file).read_bytes().splitlines(keepends=True)
                (log.outcomes / file).write_bytes(b"".join(lines[:-1]))
            if part:
                text = (part / file).read_bytes()
                (part / file).write_bytes(text[: len(text) - choose.randint(1, 100)])
                life += 1
        assert log.results() == {name: outcome(name) for name in names}


def test_damage_is_told(log):
    log.append("a.jsonl", outcome("p"))
    log.append("a.jsonl", outcome("q"))
    lines = (log.episodes / "a.jsonl").read_bytes().splitlines(keepends=True)
    (log.episodes / "a.jsonl").write_bytes(b"".join(lines[1:]))
    with refused(r"a.jsonl lacks episodes of question p; delete it and .*a.jsonl to play"):
        log.results()
    (log.outcomes / "a.jsonl").write_text('{"question_id": "p"}\n')
    with refused(r"a.jsonl:1: not an outcome .*; delete that line"):
        log.done()
