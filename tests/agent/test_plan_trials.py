"""The teacher's plans by hand: which templates it tries, which it chooses, and what it then plays."""

import asyncio
import random
from dataclasses import replace

import pytest

from forage.agent.options import AgentSettings, TeacherOptions
from forage.agent.plan_trials import Trial, choose_plans, topic_of, try_templates
from forage.agent.planning import QueryTemplate, write_plan
from forage.agent.protocol import Protocol, write_call
from forage.agent.teacher import demonstrate
from forage.data.records import Question
from tests.scripted_engine import Hit

SIGNS, CURE = QueryTemplate("signs", "[topic] signs"), QueryTemplate("cure", "cure of [topic]")
GOUT = Question("g", "What are the symptoms of  gout?", "It hurts at night.", "symptoms", "Gout", ("d",), ("right",))


class Draws(random.Random):
    """Draws what it is given, and the first of a choice."""

    def __init__(self, *drawn):
        super().__init__(0)
        self.drawn = list(drawn)

    def random(self):
        return self.drawn.pop(0) if self.drawn else 1.0

    def choice(self, several):
        return several[0]


@pytest.mark.parametrize(
    ("question", "focus", "topic"),
    [
        ("What is gout?", "Gout", "gout"), ("What is low  back PAIN?", "low back  pain", "low back PAIN"),
        ("What is goutweed?", "gout", "gout"), ("What is it?", "", ""), ("Is C++ (a) cure?", "c++ (A)", "C++ (a)"),
    ],
)  # fmt: skip
def test_the_topic_is_said_as_in_the_question(question, focus, topic):
    assert topic_of(replace(GOUT, question=question, focus=focus)) == topic


def test_templates_are_tried_in_one_search():
    asked = []

    def search(queries):
        asked.append(list(queries))
        return [[Hit("wrong", "T", ""), Hit("right", "T", "")] if "cure" in query else [] for query in queries]

    settings = AgentSettings(query_templates=(SIGNS, CURE))
    nameless = replace(GOUT, id="n", focus="")
    trials = try_templates([GOUT, nameless, replace(GOUT, id="h")], settings, search)
    assert asked == [["cure of gout", "gout signs"]]
    assert [(trial.template, trial.rank) for trial in trials["g"]] == [("signs", None), ("cure", 2)]
    assert trials["n"] == []
    assert trials["h"] == trials["g"]
    assert try_templates([GOUT], AgentSettings(), search) == {"g": []}
    assert len(asked) == 1  # without templates nothing is searched for


def names(plans):
    return [[trial.template for trial in plan] for plan in plans]


def test_plans_by_hand():
    tried = [Trial("a", (), None), Trial("b", (), 2), Trial("c", (), 1), Trial("d", (), 1), Trial("e", (), 3)]
    assert names(choose_plans(tried, None, Draws(), 2)) == [["c"]]
    assert names(choose_plans(tried, 1, Draws(), 2)) == [["c"]]  # a plan is preferred to a query as good
    assert names(choose_plans(tried[:2], 1, Draws(), 2)) == []  # and not to a better one
    assert names(choose_plans(tried[:1], None, Draws(), 2)) == []
    assert choose_plans([], None, Draws(), 2) == []
    # The first draw is for a second template, the second for a plan that fails first.
    assert names(choose_plans(tried, None, Draws(0.05, 0.5), 2)) == [["c", "d"]]
    assert names(choose_plans(tried, None, Draws(0.5, 0.05), 2)) == [["a"], ["c"]]
    assert names(choose_plans(tried, None, Draws(0.05, 0.05), 2)) == [["a"], ["c", "d"]]
    assert names(choose_plans([*tried[:3], tried[4]], None, Draws(0.05), 2)) == [["c", "b"]]
    assert names(choose_plans(tried, None, Draws(0.5), 1)) == [["c"]]  # a turn of one search has no room for two


def shown(protocol, finds, templates=(SIGNS, CURE), teacher=None, seed=1, **limits):
    """The turns that the teacher plays for GOUT; of some seeds the first fails, or a plan names two templates."""
    settings = AgentSettings(query_templates=templates, **limits)
    protocol = Protocol.playing(protocol.tokenizer, settings)

    def search(queries):
        return [[Hit(name, "Gout", "It hurts at night.") for name in finds.get(query, ())] for query in queries]

    episodes = asyncio.run(demonstrate([GOUT], search, protocol, settings, teacher or TeacherOptions(), seed))
    return [[protocol.text(episode.ids[turn.start : turn.end]) for turn in episode.turns] for episode in episodes]


def test_the_teacher_plays_the_plan_that_finds_the_answer(tiny_protocol):
    finds = {"gout signs": ("wrong", "right"), "Gout symptoms": ("other", "wrong", "right")}
    [[plan, answer]] = shown(tiny_protocol, finds)
    assert plan == write_plan("gout", ["signs"])
    assert answer == "Passage 2 answers this.\n<answer>It hurts at night.</answer>"
    assert shown(tiny_protocol, finds, max_turns=1) == [[plan]]


def test_the_teacher_writes_a_query_where_no_plan_is_as_good(tiny_protocol):
    finds = {"gout signs": ("wrong", "right"), "Gout symptoms": ("right",)}
    [[call, answer]] = shown(tiny_protocol, finds)
    assert call == write_call("Gout symptoms")
    assert answer.startswith("Passage 1 answers")
    assert shown(tiny_protocol, {"gout signs": ("wrong",)}) == []


def test_without_a_library_it_plays_as_before(tiny_protocol):
    finds = {"gout signs": ("right",), "Gout symptoms": ("wrong", "right")}
    [[call, _]] = shown(tiny_protocol, finds, templates=())
    assert call == write_call("Gout symptoms")


def test_the_teacher_thinks_before_its_plans_too(tiny_protocol):
    finds = {"gout signs": ("wrong", "right")}
    [[plan, answer]] = shown(tiny_protocol, finds, teacher=TeacherOptions(thought_words=24))
    assert plan == "The question asks about symptoms, gout. I search for: signs of gout\n" + write_plan(
        "gout", ["signs"]
    )
    assert answer == "Passage 2 says: It hurts at night. That answers it.\n<answer>It hurts at night.</answer>"


def test_the_teacher_may_plan_twice_and_name_two(tiny_protocol):
    """With many seeds every way of choose_plans is played, with thoughts, and each finds the answer at the end."""
    rest = QueryTemplate("rest", "[topic] rest")
    finds = {"gout signs": ("wrong", "right"), "cure of gout": ("wrong", "other", "right")}
    seen = {
        tuple(turns[:-1])
        for seed in range(60)
        for turns in shown(tiny_protocol, finds, (SIGNS, CURE, rest), TeacherOptions(thought_words=0), seed)
    }
    one, two = write_plan("gout", ["signs"]), write_plan("gout", ["signs", "cure"])
    fails = write_plan("gout", ["rest"])
    assert {(one,), (two,), (fails, one)} <= seen <= {(one,), (two,), (fails, one), (fails, two)}
