"""Thought templates by hand: how they are distilled, which one is retrieved, and what it says to the policy."""

import sys
from dataclasses import replace

import pytest

from forage.agent.episode import Search, append_episodes
from forage.agent.protocol import write_answer, write_call
from forage.data.records import Question
from forage.errors import UserError
from forage.evaluation.strategies.thought_templates import (
    Options,
    Template,
    ThoughtTemplates,
    build_library,
    hint,
    main,
    read_templates,
    retrieved,
    slotted,
    topic_of,
)
from forage.files import write_jsonl
from tests.factories import EPISODE as EXAMPLE
from tests.scripted_engine import check_books, run

SYMPTOMS = Template("symptoms", "What are the symptoms of [topic]?", ("[topic] signs",), 3, 0.9)
CAUSES = Template("causes", "What causes [topic]?", ("why [topic]", "[topic] origin"), 2, 0.8)
OTHER = Template("symptoms", "What are the symptoms of [topic]?", ("[topic]",), 9, 0.5)
TREATMENT = Template("treatment", "How is [topic] treated?", ("[topic] cure",), 2, 0.7)
LIBRARY = (CAUSES, OTHER, SYMPTOMS, TREATMENT)


def test_a_focus_becomes_a_slot():
    assert slotted("What causes Gout?", "gout") == "What causes [topic]?"
    assert slotted("goutweed and  low back  pain", "low back pain") == "goutweed and [topic]"
    assert slotted("goutweed", "gout") == "goutweed"
    assert slotted("What causes it?", "") == "What causes it?"


def test_what_stands_in_the_slot():
    assert topic_of("What causes [topic]?", "what causes  low back pain ?") == "low back pain"
    assert topic_of("What causes [topic]?", "How is gout treated?") == ""


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
    assert build_library(episodes, questions, least_reward=0.5, least_episodes=2) == [
        Template("causes", "What causes [topic]?", ("origin of [topic]",), 3, pytest.approx(0.9)),
        Template("causes", "What causes [topic]?", ("why [topic]",), 2, pytest.approx(0.9)),
    ]


def test_which_template_is_retrieved():
    assert retrieved(LIBRARY, "What are the symptoms of gout?", 1) == [SYMPTOMS]  # .9 * 3/4 is over .5 * 9/10
    assert retrieved(LIBRARY, "What are the symptoms of gout?", 9) == [SYMPTOMS, OTHER]
    assert retrieved(LIBRARY, "Which symptom has gout", 1) == [SYMPTOMS]  # no shape fits: by words
    assert retrieved(LIBRARY, "Is gout dear", 1) == []
    assert retrieved((), "What causes gout?", 1) == []
    wide = Template("information", "What [topic]?", ("[topic]",), 99, 1.0)
    assert retrieved((wide, CAUSES), "What causes gout?", 1) == [CAUSES]  # the longer shape knows more


def test_what_a_template_says():
    assert 'searching for "why gout", then "gout origin" and' in hint(CAUSES, "What causes gout?")
    assert '"[topic] signs"' in hint(SYMPTOMS, "Which symptom has gout")
    assert "[topic] stands for" in hint(SYMPTOMS, "Which symptom has gout")


def test_the_hint_helps_a_policy_that_heeds_it(protocol):
    def say(name, turn, text):
        if turn == 0:
            return write_call("gout signs" if 'searching for "gout signs"' in text else "gout")
        return write_answer("pain")

    question = Question("q1", "What are the symptoms of gout?", "GOLD", "GOLD", "GOLD")
    passages = {"gout signs": {"right#0": "Pain."}, "gout": {"wrong#0": "x"}}
    outcome, engine = run(ThoughtTemplates(LIBRARY), protocol, say, passages, question)
    assert outcome.episode.hits == ("right#0",)
    assert "GOLD" not in outcome.episode.transcript  # focus, type and answer are not told
    check_books(outcome, engine)
    plain, _ = run(ThoughtTemplates(()), protocol, say, passages, question)
    assert plain.episode.hits == ("wrong#0",)
    assert plain.episode.ids[: plain.episode.turns[0].start] == tuple(protocol.prompt(question.question))


def test_the_command(tmp_path, capsys):
    question = Question("gout-1", "What causes gout?", "x", "causes", "Gout")
    held_out = replace(question, id="eval-1")
    episodes = [
        replace(EXAMPLE, question_id=name, searches=(Search(0, query, ("a",)),), reward=0.9)
        for name, query in (("gout-1", "why gout"), ("eval-1", "gout origin"))
    ]
    append_episodes(tmp_path / "run" / "episodes" / "000003" / "w.jsonl", episodes)
    write_jsonl(tmp_path / "train.jsonl", [question])
    write_jsonl(tmp_path / "eval.jsonl", [held_out])
    options = Options(tmp_path / "run", tmp_path, tmp_path / "library.jsonl", least_episodes=1)
    main(options)
    assert read_templates(options.out) == (Template("causes", "What causes [topic]?", ("why [topic]",), 1, 0.9),)
    assert "What causes [topic]? -> why [topic] (0.90, 1)" in capsys.readouterr().out
    with pytest.raises(UserError, match="lower --least-reward"):
        main(replace(options, least_reward=0.95))
    with pytest.raises(UserError, match="has no episodes"):
        main(replace(options, run_dir=tmp_path / "none"))
    options.out.write_text('{"kind": "x"}\n')
    with pytest.raises(UserError, match=r"library.jsonl:1: no template"):
        read_templates(options.out)


def test_the_command_line(tmp_path, monkeypatch):
    from forage.cli import run_script

    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "none"), "--data", str(tmp_path)])
    with pytest.raises(SystemExit, match="has no episodes"):
        run_script(main)
