"""Questions behind a name, by hand: what describes, what is asked, what is dropped, whose subject is held out."""

import random
from dataclasses import replace

import pytest

from forage.data.chunking import Chunk
from forage.data.records import Question
from forage.extras.questions.behind_names import akin, apart, behind_names, description, is_telling, without_name


def chunk(doc, index, text, title="Gout"):
    return Chunk(doc, title, text, 0, len(text), index, 2)


GOUT = Question("q1", "What causes Gout ?", "Too much urate.", "causes", "", ("g",), ("g#1",))
CHUNKS = [
    chunk("g", 0, "Gouty crystals swell inside joints."),
    chunk("g", 1, "Too much urate."),
    *(chunk("m", n, "Crystals swell inside joints somewhere.", "Mumps") for n in range(2)),
]


@pytest.mark.parametrize(
    ("question", "title", "asked"),
    [
        ("What causes Gout ?", "Gout", "What causes this?"),
        ("Is gout inherited?", "Gout", "Is this inherited?"),
        ('What does "Rye (bread)" say about a crumb?', "Rye (bread)", "What does this say about a crumb?"),
        ("What causes gouty toes?", "Gout", ""),  # another word
        ("What causes it?", "Gout", ""),
        ("What causes it?", " ", ""),
    ],
)
def test_the_name_goes_from_the_question(question, title, asked):
    assert without_name(question, title) == asked


@pytest.mark.parametrize(
    ("word", "count", "told"),
    [("crystals", 5, True), ("crystals", 4, False), ("crystals", 500, True), ("crystals", 501, False),
     ("toe", 50, False), ("with", 50, False), ("b12vitamin", 50, False)],
)  # fmt: skip
def test_words_that_describe_are_neither_rare_nor_everywhere(word, count, told):
    assert is_telling(word, count, 10_000) == told  # 5 chunks at least, 5 % at most


def test_a_description_says_nothing_of_the_name():
    assert akin("gouty", ["gout"])
    assert akin("leukemias", ["leukemia"])
    assert not akin("crystals", ["gout"])
    fit = {"gouty", "crystals", "swell", "inside"}
    said = description("Gout", CHUNKS[:1], fit, 3, random.Random(0))
    assert sorted(said) == ["crystals", "inside", "swell"]
    assert description("Gout", CHUNKS[:1], fit, 4, random.Random(0)) == []  # "gouty" would be the fourth


def behind(ranks, questions=(GOUT,), words=4):
    return behind_names(questions, CHUNKS, words, lambda queries: [ranks] * len(queries), 0)


def test_a_question_is_asked_behind_words_of_another_passage():
    made = behind(["g#0", "m#0"])
    (question,) = made.kept
    said, _, asked = question.question.partition(": ")
    assert (sorted(said.split()), asked) == (["crystals", "inside", "joints", "swell"], "What causes this?")
    assert question == replace(GOUT, id="q1-behind", question=question.question, focus="Gout")
    assert (made.dropped, made.one_search, made.named) == ([], 0.0, 1.0)
    assert behind(["m#0", "g#0"]).named == 0.0
    assert behind(["g#0"]).kept == made.kept  # drawn by the seed and the question's id


def test_what_is_dropped_is_told_with_its_cause():
    assert behind(["g#0"], words=5).dropped == [(GOUT, "no other passage with words enough")]
    unnamed = replace(GOUT, question="What causes that?")
    assert behind(["g#0"], [unnamed]).dropped == [(unnamed, "doesn't say its title")]
    found = behind(["g#0", "g#1"])  # its answer is the second passage
    assert (found.kept, found.one_search) == ([], 1.0)
    assert [cause for _, cause in found.dropped] == ["one search finds its answer (10 passages)"]


def test_no_subject_is_trained_on_that_is_held_out():
    held_out, other = replace(GOUT, focus="gout"), replace(GOUT, id="q2", focus="Mumps")
    assert apart([replace(GOUT, focus="Gout"), other], [held_out]) == ([other], [replace(GOUT, focus="Gout")])
