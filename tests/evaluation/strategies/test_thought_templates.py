"""The template library by hand: how it is built from a run's episodes, and the command."""

import sys
from dataclasses import replace

import pytest

from forage.agent.episode import Search, append_episodes
from forage.cli import run_script
from forage.data.records import Question
from forage.errors import UserError
from forage.evaluation.strategies.templates import Template, read_templates
from forage.evaluation.strategies.thought_templates import Options, build_library, main, slotted
from forage.files import write_jsonl
from tests.factories import EPISODE as EXAMPLE


def test_a_focus_becomes_a_slot():
    assert slotted("What causes Gout?", "gout") == "What causes [topic]?"
    assert slotted("goutweed and  low back  pain", "low back pain") == "goutweed and [topic]"
    assert slotted("goutweed", "gout") == "goutweed"
    assert slotted("What causes it?", "") == "What causes it?"


def test_a_library_by_hand():
    questions = [
        Question(name, f"What causes {name}?", "x", "causes", name.upper()) for name in ("gout", "mumps", "acne", "flu")
    ]

    def played(name, query, reward, **more):
        return replace(EXAMPLE, question_id=name, searches=(Search(0, query, ("a",)),), reward=reward, **more)

    episodes = [
        played("gout", "why Gout", 1.0),
        played("mumps", "why mumps", 0.8),
        played("acne", "origin of acne", 0.9),
        played("flu", "origin of flu", 0.9),
        played("gout", "origin of gout", 0.9),
        played("gout", "gout", 1.0),  # only one
        played("flu", "why flu", 0.4),  # not rewarded enough
        played("flu", "why flu", 1.0, stop="turns"),  # not well-formed
        played("mumps", "fever", 1.0),  # speaks of something else
        played("unknown", "why gout", 1.0),  # of no training question
    ]
    assert build_library(episodes, questions, min_reward=0.5, min_episodes=2) == [
        Template("causes", "What causes [topic]?", ("origin of [topic]",), 3, pytest.approx(0.9)),
        Template("causes", "What causes [topic]?", ("why [topic]",), 2, pytest.approx(0.9)),
    ]


def test_the_command(tmp_path, capsys):
    question = Question("gout-1", "What causes gout?", "x", "causes", "Gout")
    held_out = replace(question, id="eval-1", question="What mends gout?")
    episodes = [
        replace(EXAMPLE, question_id=name, searches=(Search(0, query, ("a",)),), reward=0.9)
        for name, query in (("gout-1", "why gout"), ("eval-1", "gout origin"))
    ]
    append_episodes(tmp_path / "run" / "episodes" / "000003" / "w.jsonl", episodes)
    write_jsonl(tmp_path / "train.jsonl", [question])
    write_jsonl(tmp_path / "eval.jsonl", [held_out])
    options = Options(tmp_path / "run", tmp_path, tmp_path / "library.jsonl", min_episodes=1)
    main(options)
    assert read_templates(options.out) == (Template("causes", "What causes [topic]?", ("why [topic]",), 1, 0.9),)
    assert "What causes [topic]? -> why [topic] (0.90, 1)" in capsys.readouterr().out
    with pytest.raises(UserError, match="lower --min-reward"):
        main(replace(options, min_reward=0.95))
    with pytest.raises(UserError, match="has no episodes"):
        main(replace(options, run_dir=tmp_path / "none"))
    options.out.write_text('{"kind": "x"}\n')
    with pytest.raises(UserError, match=r"library.jsonl:1: not a template"):
        read_templates(options.out)


def test_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "none"), "--data", str(tmp_path)])
    with pytest.raises(SystemExit, match="has no episodes"):
        run_script(main)
