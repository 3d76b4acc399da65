"""Titles against a query's words, by hand."""

import numpy as np
import pytest

from forage.store.bm25 import Titles, Tokenizer, said_share

TITLES = [
    "Gouty arthritis",
    "Gouty arthritis",
    "",
    "Asthma",
    "Heart attack",
    "Heart attack",
    "Chronic gouty nephropathy",
]
EVERY = np.arange(len(TITLES))


@pytest.fixture
def titles():
    return Titles.build(TITLES, Tokenizer())


def test_shares_of_the_words_of_each_distinct_title(titles):
    # Gouty arthritis, "", Asthma, Heart attack, Chronic gouty nephropathy; a word counts once, however often it is said
    said = Tokenizer()("Is it the heart, the heart or gouty?")
    assert [said_share(title, said) for title in titles.words] == pytest.approx([1 / 2, 0, 0, 1 / 2, 1 / 3])
    assert said_share(titles.words[0], []) == 0


def test_the_best_title_counts_as_much_as_was_said_of_it(titles):
    said = Tokenizer()("Why does asthma attack at night?")
    whole = titles.rank(said, EVERY, by_share=False)
    assert (whole.ids[0], whole.scores[0]) == (3, 1.0)
    assert titles.rank(said, EVERY, by_share=True).scores[0] == 1.0  # asthma is said in full
    half = titles.rank(Tokenizer()("an attack"), EVERY, by_share=True)
    assert (half.ids[:2].tolist(), half.scores[:3].tolist()) == ([4, 5], pytest.approx([0.5, 0.5, 0]))
    assert titles.rank(Tokenizer()("an attack"), EVERY, by_share=False).scores[:3].tolist() == [1, 1, 0]


def test_a_title_that_scores_half_as_much_as_the_best_counts_a_quarter(titles):
    said = Tokenizer()("attack of gouty arthritis")
    scores = np.abs(titles.index.scores(said))
    ranked = titles.rank(said, EVERY, by_share=False)
    found = dict(zip(ranked.ids.tolist(), ranked.scores.tolist(), strict=True))
    assert found[4] == pytest.approx((scores[3] / scores[0]) ** 2)
    shared = titles.rank(said, EVERY, by_share=True)
    assert dict(zip(shared.ids.tolist(), shared.scores.tolist(), strict=True))[4] == pytest.approx(found[4] / 2)


def test_a_title_of_a_negative_score_is_not_the_best():
    few = Titles.build(["flu", "flu heart flu", "flu flu"], str.split)  # with -.23, .20 and -.26
    assert few.rank(["heart", "flu"], np.arange(3), by_share=False).scores.tolist() == [1, 0, 0]
    assert few.rank(["heart", "flu"], np.array([0, 2]), by_share=False).scores.tolist() == [0, 0]


def test_only_the_given_chunks_are_ranked_and_the_best_among_them_is_the_measure(titles):
    ranked = titles.rank(Tokenizer()("heart attack and asthma"), np.array([2, 3, 6]), by_share=True)
    assert (ranked.ids.tolist(), ranked.scores.tolist()) == ([3, 2, 6], [1, 0, 0])
    nothing = titles.rank(Tokenizer()("measles"), np.array([2, 3]), by_share=True)
    assert (nothing.ids.tolist(), nothing.scores.tolist()) == ([2, 3], [0, 0])
    assert titles.rank(["asthma"], np.zeros(0, np.int64), by_share=True).ids.tolist() == []
