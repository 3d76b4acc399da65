"""The lab: classes, changes and verdicts by hand; reading told from remembering; the page, and that it resumes."""

import asyncio
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from evaluate import LAB, SYSTEMS, main
from forage.agent.agent import Agent, BatchedSearch
from forage.agent.episode import Search
from forage.agent.options import SearchOptions
from forage.agent.protocol import RESPONSE, write_answer, write_call
from forage.agent.rewards import get_groundedness, get_mrr
from forage.agent.searcher import searching
from forage.data.records import Document, Question, read_questions
from forage.engines.base import EngineOptions
from forage.evaluation import lab
from forage.evaluation.options import EvaluationOptions
from forage.files import write_jsonl
from forage.metrics import token_f1
from tests.evaluation.settings import setting_of
from tests.factories import EPISODE, plain_store
from tests.scripted_engine import Hit, Scripted


def asked(name, right, question="", kind=""):
    return Question(name, question or f"{name}?", "", kind, relevant_chunk_ids=(right,))


def test_classes_by_hand():
    """The question finds a, titled Gout. "Gout deep?" finds what answers q2, and "Gout cure" what answers q3."""
    titles = {"a#0": "Gout", "b#0": "Rye", "c#0": "Sea", "d#0": "Sky"}
    finds = {"Gout deep?": "b#0", "Gout cure": "c#0", "Sky q4?": "d#0"}

    def search(queries):
        return [[Hit(finds.get(query, "a#0"), titles[finds.get(query, "a#0")], "")] for query in queries]

    questions = [asked("q1", "a#0"), asked("q2", "b#0", "deep?"), asked("q3", "c#0", "how?", "cure"),
                 asked("q4", "d#0"), asked("q5", "lost#0")]  # fmt: skip
    classes = lab.classes_of(questions, search, titles)
    assert classes == ["one search", "two searches", "two searches", "neither", "unanswerable"]
    rows = lab.class_rows("warm", {"mrr": np.array([1.0, 0.5, 0, 0, 1])}, classes)
    assert [(name, count, mean[:5]) for name, (count, mean) in rows] == [
        ("warm: one search", "1", "1.000"), ("warm: two searches", "2", "0.250"), ("warm: neither", "1", "0.000"),
        ("warm: unanswerable", "1", "1.000"),
    ]  # fmt: skip


SURE, NONE = [-0.5] * 8 + [-0.3] * 8, [0.01, -0.01] * 40
FALLS, RISES, ALIKE, OPEN = (
    lab.Change(0.5, 0.1, SURE), lab.Change(0.1, 0.5, [-gain for gain in SURE]), lab.Change(0.5, 0.5, NONE),
    lab.Change(0.5, 0.45, [1.0, 0, 0, 0, 0, -1, -0.3]),
)  # fmt: skip


def test_what_a_change_shows():
    assert [each.kind for each in (FALLS, RISES, ALIKE, OPEN)] == ["falls", "rises", "none", "open"]
    assert lab.Change(1, 0, [-1.0] * 5).kind == "open"  # five questions may all go one way by chance
    assert lab.Change(1, 0, [-1.0] * 6).kind == "falls"
    assert lab.Change(0.5, 0.49, [-0.01] * 50).kind == "none"  # clear of zero, and too little to count
    assert lab.Change(0.5, 0.5, [0.0] * 5).kind == "open"  # and five may all stay as they are
    assert str(FALLS).startswith("0.100, -0.400 (-0.")
    arrays = {"single": {"f1": np.array([0.5, 0.7, np.nan])}, "other": {"f1": np.array([0.5, 0.1, 1])}}
    found = lab.change(arrays, "other", "f1")
    assert (found.before, found.after, found.gains) == (
        pytest.approx(0.6),
        pytest.approx(0.3),
        pytest.approx([0, -0.6]),
    )


@pytest.mark.parametrize(
    ("nothing", "others", "without", "words"),
    [
        (FALLS, ALIKE, ALIKE, "does not read: "),  # stumbles at nothing
        (ALIKE, FALLS, FALLS, "answers as well from memory: its answers gain nothing by what was found and is misled"),
        (RISES, OPEN, FALLS, "answers as well from memory: its answers gain nothing by what was found"),
        (FALLS, FALLS, FALLS, "searches and reads: "),
        (FALLS, FALLS, ALIKE, "reads for the topic alone: "),
        (FALLS, FALLS, OPEN, "reads what was found, and is not shown to need the passages that answer"),
        (OPEN, FALLS, FALLS, "is not shown to need what was found (about "),
        (FALLS, OPEN, FALLS, "is not shown to need what was found (about "),
        (lab.Change(1, 1, [1.0, -1.0]), FALLS, FALLS, "is not shown to need what was found"),  # no number would
    ],
)
def test_what_the_changes_come_to(nothing, others, without, words):
    assert lab.conclusion(nothing, others, without).startswith(words)
    assert ("about" in lab.conclusion(nothing, others, without)) == words.endswith("about ")


def test_second_searches_by_hand():
    texts = {"a": "Gout of the toe", "b": "Rye", "c": "Sea"}
    question = Question("q", "What mends the toe?", "", relevant_chunk_ids=("c",))
    episodes = [
        [],
        [Search(0, "toe", ("a",)), Search(0, "gout", ("c",))],  # at once
        [Search(0, "toe", ("a",)), Search(1, "gout", ("c",))],  # says what it read, and finds
        [Search(0, "toe", ("a",)), Search(1, "toe of the", ("c",))],  # adds nothing to what the question has; finds
        [Search(0, "gout", ("a",)), Search(1, "gout rye", ("b",))],  # a word of its own first query, and one unread
        [Search(0, "toe", ("a",)), Search(1, "gout rye", ("b",))],  # one that it read, and one that it did not
        [Search(0, "gout", ("a", "c")), Search(1, "sea", ("c",))],  # found already
        [Search(0, "toe", ()), Search(1, "gout", ("c",))],  # nothing was found at first
    ]
    played = [replace(EPISODE, searches=tuple(searches)) for searches in episodes]
    counts = lab.second_searches(played, [question] * len(played), texts)
    assert counts == lab.SecondSearches(episodes=8, again=5, read=2, found=2)


# Two policies that search alike: one copies the first passage that it reads, the other says what it remembers.

REMEDIES = "ice rest heat cold tea salt milk wine bread honey sleep walks".split()


@pytest.fixture(scope="module")
def remedies(tmp_path_factory):
    documents = [Document(f"d{n}", f"Disease {n}", f"{remedy} mends it.") for n, remedy in enumerate(REMEDIES)]
    store = plain_store(tmp_path_factory.mktemp("lab") / "store", documents)
    questions = [
        Question(f"q{n}", f"What helps with disease {n}?", document.text, relevant_chunk_ids=(f"d{n}#0",))
        for n, document in enumerate(documents)
    ]
    return setting_of(store, questions, k=1), questions


def reader(name, turn, text):
    """Without a search it says nothing."""
    if not turn and "without a search" not in text:
        return write_call(re.findall(r"disease \d+", text)[-1])
    return write_answer("".join(RESPONSE.findall(text)).partition(": ")[2])


def rememberer(name, turn, text):
    number = int(re.findall(r"disease (\d+)\?", text)[-1])
    return write_answer(f"{REMEDIES[number]} mends it.") if turn else write_call(f"disease {number}")


def arrays_of(say, protocol, setting, questions):
    """Every measure of every system of the lab, played by an engine that says what `say` does."""

    async def play(system):
        search = BatchedSearch(searching(setting.store, setting.agent))  # in a thread, as where a server samples
        agent = Agent(Scripted(protocol, say), protocol, search, setting.agent)
        return [(await SYSTEMS[system](setting)(agent, question, 0)).episode for question in questions]

    arrays, played = {}, {}
    for system in LAB:
        played[system] = episodes = asyncio.run(play(system))
        arrays[system] = {
            "mrr": np.array(get_mrr(episodes, questions)),
            "token_f1": np.array([token_f1(e.answer, q.answer) for e, q in zip(episodes, questions, strict=True)]),
            "groundedness": np.array(get_groundedness(episodes, questions)),
            "answered": np.array([float(bool(e.answer)) for e in episodes]),
        }
    return arrays, played["single"]


def test_a_policy_that_reads_is_told_from_one_that_remembers(remedies, protocol):
    setting, questions = remedies
    arrays, episodes = arrays_of(reader, protocol, setting, questions)
    means = {system: arrays[system]["token_f1"].mean() for system in LAB}
    shared = pytest.approx(2 / 3)  # "mends it", with another remedy
    assert means == {"single": 1, "right_first": 1, "right_left_out": shared, "others_found": shared,
                     "random_found": shared, "nothing_found": 0, "plain_rag": 1, "no_retrieval": 0}  # fmt: skip
    assert arrays["single"]["groundedness"].mean() == 1
    first, better, queries = lab.verdict_on("warm", arrays, episodes)
    assert first == (
        "warm searches and reads: its answers depend on the passages that answer: token_f1 1.000 with what it found; "
        "without passages 0.000, -1.000 (-1.000 to -1.000); with another question's 0.667, -0.333 (-0.333 to -0.333); "
        "without those that answer 0.667, -0.333 (-0.333 to -0.333); it searches in 12 of 12 episodes."
    )
    assert better.startswith(
        "Better searches would not help its answers: with one that answers first token_f1 is 1.000"
    )
    assert queries == (
        "Its queries find as much as a search for the question itself: mrr 1.000, theirs 1.000, +0.000 (+0.000 to "
        "+0.000)."
    )
    arrays, episodes = arrays_of(rememberer, protocol, setting, questions)
    assert all(arrays[system]["token_f1"].mean() == 1 for system in LAB if system not in ("plain_rag", "no_retrieval"))
    assert arrays["others_found"]["groundedness"].mean() == 0.5  # mends, and not the remedy
    first, *_ = lab.verdict_on("warm", arrays, episodes)
    assert first == (
        "warm does not read: its answers don't depend on what was found: token_f1 1.000 with what it found; without "
        "passages 1.000, +0.000 (+0.000 to +0.000); with another question's 1.000, +0.000 (+0.000 to +0.000); without "
        "those that answer 1.000, +0.000 (+0.000 to +0.000); it searches in 12 of 12 episodes."
    )
    silent = {name: dict(each, answered=np.zeros(12)) for name, each in arrays.items()}
    assert lab.verdict_on("warm", silent, episodes)[0] == (
        "warm: it searches in 12 of 12 episodes; it gives no answers, or none has a reference, so they show nothing."
    )


def test_the_page_and_that_it_is_made_again_without_playing(tiny, tmp_path, embedder, monkeypatch):
    monkeypatch.setattr("forage.evaluation.setting.open_embedder", lambda *_: embedder)
    data, out = shutil.copytree(tiny / "data", tmp_path / "data"), tmp_path / "out"
    questions = read_questions(data / "train.jsonl")
    write_jsonl(data / "eval.jsonl", [*questions[:3], asked("q3", "gone#0"), Question("q4", "Who?", "Nobody.")])
    options = EvaluationOptions(
        data=data, policy=(f"warm={tiny / 'policy'}", f"plain={tiny / 'base'}"), lab=True, output_dir=out,
        engine=EngineOptions(engine="local"), concurrency=3,
        search=SearchOptions(mode="sparse", max_turns=2, max_turn_tokens=6),
    )  # fmt: skip
    main(options)
    first = (out / "lab.md").read_text()
    monkeypatch.setattr("forage.evaluation.player.open_engine", None)  # nothing is left to play
    main(options)
    assert (out / "lab.md").read_text() == first
    whole = json.loads((out / "lab.json").read_text())
    assert whole["classes"] == dict.fromkeys(("q0", "q1", "q2"), "one search") | {"q3": "unanswerable"}
    assert (whole["questions"], whole["unanswerable"]) == (4, 1)
    assert all(line in first for name in ("warm", "plain") for line in whole["verdicts"][name])
