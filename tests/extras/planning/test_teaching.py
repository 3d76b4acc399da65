"""The teacher's plans by hand: which templates it tries, which it chooses, and what it then plays."""

import asyncio
from dataclasses import replace

import pytest

import grpo_rollout
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.agent.tools import specs_of
from forage.data.records import Question
from forage.extras.planning.teaching import teach, topic_of
from forage.extras.planning.tool import planner, write_plan
from forage.files import write_jsonl
from forage.sft.teacher import TeacherOptions
from tests.scripted_engine import Hit

LIBRARY = {"signs": "[topic] signs", "cure": "cure of [topic]", "rest": "[topic] rest"}
GOUT = Question("g", "What are the symptoms of  gout?", "It hurts at night.", "symptoms", "Gout", ("d",), ("right",))


@pytest.mark.parametrize(
    ("question", "focus", "topic"),
    [
        ("What is gout?", "Gout", "gout"), ("What is low  back PAIN?", "low back  pain", "low back PAIN"),
        ("What is goutweed?", "gout", "gout"), ("Is C++ (a) cure?", "c++ (A)", "C++ (a)"),
    ],
)  # fmt: skip
def test_the_topic_is_said_as_in_the_question(question, focus, topic):
    assert topic_of(replace(GOUT, question=question, focus=focus)) == topic


@pytest.fixture
def taught(tiny_protocol, tmp_path, monkeypatch):
    """The turns that the teacher plays for GOUT, given what queries find."""
    write_jsonl(tmp_path / "library.jsonl", [{"name": name, "query": query} for name, query in LIBRARY.items()])
    tools = {"plan": planner(tmp_path / "library.jsonl")}
    monkeypatch.setattr(grpo_rollout, "get_tools", lambda: tools)

    def play(finds, seed=1, **limits):
        settings = AgentSettings(tools=specs_of(tools), **limits)
        protocol = Protocol.playing(tiny_protocol.tokenizer, settings)

        def search(queries):
            return [[Hit(name, "Gout", "It hurts at night.") for name in finds.get(query, ())] for query in queries]

        episodes, _ = asyncio.run(teach([GOUT], LIBRARY, search, protocol, settings, TeacherOptions(), seed))
        return [[protocol.text(episode.ids[turn.start : turn.end]) for turn in episode.turns] for episode in episodes]

    return play


def test_the_teacher_plays_the_plan_that_finds_the_answer(taught):
    finds = {"gout signs": ("wrong", "right")}
    [[plan, answer]] = taught(finds)
    assert plan == write_plan("gout", "signs")
    assert answer == "Passage 2 answers this.\n<answer>It hurts at night.</answer>"
    assert taught(finds, max_turns=1) == [[plan]]
    assert taught({"gout signs": ("wrong",)}) == []
