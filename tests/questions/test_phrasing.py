"""Questions made without a model, worked out by hand."""

import asyncio

from forage.data.chunking import Chunk
from forage.questions.candidates import Candidate, in_turn
from forage.questions.phrasing import (
    Phraser,
    Vocabulary,
    is_heading,
    lowered,
    sentences_of,
    shortened,
    split_headings,
    with_blank,
    within,
)


def passage(text, title="Care of bees", number=0, doc="bees"):
    return Chunk(doc, title, text, 0, len(text), number, 1)


def phraser(*passages, seed=0):
    return Phraser(Vocabulary.of(passages), seed)


def test_a_heading_is_asked_about_and_its_section_begins_the_answer():
    one = passage("Care of bees\nWinter feeding\nFeed syrup. Do it in autumn. Then rest.")
    [found] = phraser(one).candidates(one)
    assert found == Candidate(
        "title", one, 'What does "Care of bees" say about winter feeding?', "Feed syrup. Do it in autumn."
    )


def test_a_heading_that_asks_is_the_question():
    one = passage("When do they swarm?\nThey swarm in May.")
    assert [c.question for c in phraser(one).candidates(one)] == ["Care of bees: When do they swarm?"]


def test_without_a_heading_the_word_that_is_rare_elsewhere():
    """'smoke' is here twice and in one of three passages (2/1); 'keepers' is here twice and in two (2/2)."""
    here = passage("Keepers calm them. Then smoke calms keepers, and more smoke.")
    others = [passage("All keepers wear veils.", number=1), passage("Wax melts.", number=2)]
    made = phraser(here, *others).candidates(here)
    assert [(c.question, c.answer) for c in made if c.kind == "title"] == [
        ('What does "Care of bees" say about smoke?', "Then smoke calms keepers, and more smoke.")
    ]


def test_a_number_becomes_a_blank():
    """No word is rare enough here: each is in all 40 passages; and 1 begins the sentence."""
    text = "1 hive holds up to 60,000 bees in the summer months."
    one = passage(text)
    many = [passage(text, number=n) for n in range(40)]
    [_, found] = phraser(*many).candidates(one)
    assert (found.kind, found.term) == ("cloze", "60,000")
    assert found.question == 'What fills the blank? "1 hive holds up to ____ bees in the summer months."'
    assert found.answer == f"60,000: {text}"


def test_a_rare_word_becomes_a_blank_but_no_word_that_is_said_twice_or_in_the_title():
    one = passage("They like clover and clover honey of feeding bees at noon.", title="Feeding and noon")
    others = [passage("They like clover honey at noon.", number=n) for n in range(1, 60)]
    made = [c for c in phraser(one, *others).candidates(one) if c.kind == "cloze"]
    assert made == []  # "honey" is everywhere, "clover" is there twice, "feeding" is in the title, others are short
    two = passage("They like clover and phacelia honey of feeding bees at noon.", title="Feeding and noon")
    [found] = [c for c in phraser(two, *others).candidates(two) if c.kind == "cloze"]
    assert found.term == "phacelia"


def test_rows_of_tables_and_short_or_torn_sentences_get_no_blank():
    one = passage(
        "Hives | 12 | 13 | 14 | 15 | 16 here. Only 5 bees came. There were 99 of them in the autumn but", title=""
    )
    assert phraser(one).candidates(one) == []


def test_the_same_seed_makes_the_same_and_another_seed_other_questions():
    text = " ".join(f"In the year {1900 + n} there came {n + 20} swarms to us." for n in range(12))
    one = passage(text)
    first = [phraser(one, seed=seed).candidates(one)[-1].question for seed in range(8)]
    assert first == [phraser(one, seed=seed).candidates(one)[-1].question for seed in range(8)]
    assert len(set(first)) > 3
    assert asyncio.run(phraser(one).made([one])) == phraser(one).candidates(one)


def test_documents_take_turns():
    long = [passage(f"Long {n}.", number=n, doc="long") for n in range(5)]
    short = [passage("Short.", doc=f"short{n}") for n in range(3)]
    order = [p.doc_id for p in in_turn([*long, *short], 0)]
    assert sorted(order[:4]) == ["long", "short0", "short1", "short2"]
    assert order[4:] == ["long"] * 4
    assert in_turn([*long, *short], 0) == in_turn([*reversed(short), *long], 0)
    assert len({tuple(p.id for p in in_turn(long, seed)) for seed in range(6)}) > 1


def test_parts():
    assert split_headings("Asthma\nCare\nRest helps.") == (["Asthma", "Care"], "Rest helps.")
    assert split_headings("Egg\nMilk\nSalt\nOil\nStir it.") == ([], "Egg\nMilk\nSalt\nOil\nStir it.")  # a list
    assert split_headings("Alone") == ([], "Alone")
    assert not is_heading("It is said:")
    assert not is_heading("a | b")
    assert sentences_of("One is here. Two\nis torn") == ["One is here."]
    assert with_blank("It was opened in 1923 by the king.", 17, 4) == "It was opened in ____ by the king."
    words = " ".join(f"w{n}" for n in range(10)) + " X " + " ".join(f"v{n}" for n in range(10))
    assert with_blank(words, words.index("X"), 1) == (
        "... w2 w3 w4 w5 w6 w7 w8 w9 ____ v0 v1 v2 v3 v4 v5 v6 v7 ..."
    )  # fmt: skip
    assert within("Feeding a bee", "bees that feed")
    assert not within("Feeding wasps", "bees that feed")
    assert lowered("Winter feeding") == "winter feeding"
    assert lowered("DNA tests") == "DNA tests"
    assert shortened(' the "big" ' + "x " * 30) == "the 'big' " + " ".join("x" * 18)
