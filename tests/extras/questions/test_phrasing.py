"""Questions made without a model, worked out by hand."""

import asyncio

import pytest

from forage.data.chunking import Chunk
from forage.extras.questions.phrasing import (
    Phraser,
)
from forage.extras.questions.vetting import Candidate


def passage(text, title="Care of bees", number=0, doc="bees"):
    return Chunk(doc, title, text, 0, len(text), number, 1)


def made(one, *others):
    return asyncio.run(Phraser([one, *others])([one]))


def test_a_heading_is_asked_about_and_its_section_begins_the_answer():
    one = passage("Care of bees\nWinter feeding\nFeed syrup. Do it in autumn. Then rest.")
    question = 'What does "Care of bees" say about winter feeding?'
    assert made(one) == [Candidate("title", one, question, "Feed syrup. Do it in autumn.")]


def test_a_heading_that_asks_is_the_question():
    one = passage("When do they swarm?\nThey swarm in May.")
    assert [c.question for c in made(one)] == ["Care of bees: When do they swarm?"]


def test_without_a_heading_the_word_that_is_rare_elsewhere():
    """'smoke' is here twice and in one of three passages (2/1); 'keepers' is here twice and in two (2/2)."""
    here = passage("Keepers calm them. Then the smoke calms keepers, like the smoke of old.")
    [found] = made(here, passage("All keepers wear veils.", number=1), passage("Wax melts.", number=2))
    assert found.question == 'What does "Care of bees" say about the smoke?'
    assert found.answer == "Then the smoke calms keepers, like the smoke of old."


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("About\nA cover of Arden takes ten nails.", "about the cover"),  # the heading says nothing of its section
        ("Notes and further reading\nCalm keepers work in Arden.", "about Arden"),
        ("Darker\nFor a darker wax, heat it.", "about a darker wax"),
        ("Strong\nStrong hives swarm.", 'under "Strong"'),  # a noun or not, who knows
        ("Worn out\nReplace the frame.", 'under "Worn out"'),
        ("Smoke\nPuff smoke at the door.\n", 'under "Smoke"'),
        ("Smoker\nFill it. Light the smoker.", "about the smoker"),
        ("Lights\nTurn them off.", "about lights"),
        ("Little is known.", 'about "Little"'),
    ],
)
def test_subjects_are_nouns_or_quoted(text, asks):
    assert [one.question for one in made(passage(text))] == [f'What does "Care of bees" say {asks}?']


def test_nothing_is_asked_without_a_title_or_a_whole_sentence():
    assert made(passage("There were bees.", title="")) == made(passage("There were bees in the")) == []
