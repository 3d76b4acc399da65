"""Telling words: weights by hand, and what is drawn by them."""

import math
import random
from collections import Counter

import pytest

from forage.data.records import Question
from forage.sft.demonstrations import answer_words, draw_words, telling_words, words_of


def asked(number, kind, answer, question="What helps?"):
    return Question(f"q{number}", question, answer, kind, "gout")


def test_the_words_of_an_answer_are_those_that_the_question_lacks():
    assert words_of("It's Gout: rest") == ["it's", "gout", "rest"]
    assert answer_words(asked(0, "", "What helps is REST and ice, rest.")) == {"rest", "ice"}


def test_weights_by_hand():
    """4 of 12 answers are of "treatment". All of those have "rest", which one other has too; "ice" is in 2 only,
    and "pain" is commoner in the others."""
    treatment = [asked(n, "treatment", "rest ice" if n < 2 else "rest pain pain pain") for n in range(4)]
    causes = [asked(4 + n, "causes", "rest pain" if n == 0 else "pain crystals") for n in range(8)]
    found = telling_words([*treatment, *causes])
    assert found["treatment"] == {"rest": pytest.approx(1 * math.log(1 / (5 / 12)))}
    assert found["causes"] == {
        "pain": pytest.approx(1 * math.log(1 / (10 / 12))),
        "crystals": pytest.approx(7 / 8 * math.log((7 / 8) / (7 / 12))),
    }


def test_words_are_drawn_of_the_answer_alone_and_by_their_weight():
    telling = {"rest": 2.0, "ice": 1.0, "pain": 1.0, "never": 9.0}
    question = asked(0, "treatment", "Rest, ice, and pain; then sleep.")
    firsts = Counter(draw_words(question, telling, 1, random.Random(seed)) for seed in range(2000))
    # The first is drawn in proportion: 2 / 4, 1 / 4, 1 / 4; six deviations of a share of 1/2 in 2000 draws are .067.
    assert {word: count / 2000 for word, count in firsts.items()} == {
        "rest": pytest.approx(0.5, abs=0.067), "ice": pytest.approx(0.25, abs=0.067),
        "pain": pytest.approx(0.25, abs=0.067),
    }  # fmt: skip
    for seed in range(20):  # all of them, the most telling first
        first, *others = draw_words(question, telling, 5, random.Random(seed)).split()
        assert (first, sorted(others)) == ("rest", ["ice", "pain"])
    assert draw_words(question, {}, 5, random.Random(0)) == ""
