"""Expansions without a model, which trained policies are compared with: weights, keys and choices by hand."""

from collections import Counter
from types import SimpleNamespace

import pytest

from bench.expansion import ANY, RM3, key_of, keys_of
from forage.data.records import Question


def test_rm3_by_hand():
    """Two of the example's x .5, y .375 and z .125 are kept, .875 of all: 4/7 and 3/7 of the words' weight.

    The question has one word, 20 times. The words have as much weight: 20 * 4/7 = 11.4 and 20 * 3/7 = 8.6 times.
    """
    hits = [SimpleNamespace(score=3.0, text="X x y"), SimpleNamespace(score=1.0, text="y z, and the")]
    assert Counter(RM3(10, 2, 0.5).expand("gout", hits).split()) == {"gout": 20, "x": 11, "y": 9}
    # With three quarters for the question the words have a third of its weight: 6.67 * 4/7 and 6.67 * 3/7.
    assert Counter(RM3(10, 2, 0.75).expand("gout", hits).split()) == {"gout": 20, "x": 4, "y": 3}
    # By the first chunk alone x has 2/3 and y 1/3 of 20.
    assert Counter(RM3(1, 9, 0.5).expand("gout", hits).split()) == {"gout": 20, "x": 13, "y": 7}


def test_a_question_has_the_longest_key_it_begins_with():
    keys = {"what", "what causes", "what causes gout in", ANY}
    assert key_of("What causes gout?", keys) == "what causes"
    assert key_of("What is (are) gout?", keys) == "what"
    assert key_of("Is gout inherited?", keys) == ANY


def asked(number, text, chunk="right"):
    return Question(f"q{number}", text, "An answer.", "", "", relevant_chunk_ids=(chunk,))


@pytest.fixture
def questions():
    causes = [asked(n, f"What causes disease {n}?") for n in range(20)]
    return [*causes, *(asked(20 + n, f"Is disease {n} inherited?", "other") for n in range(20)), asked(40, "Gout?")]


def test_keys_are_what_enough_questions_share(questions):
    sizes = {key: len(several) for key, several in keys_of(questions).items()}
    # The number of the disease, which is its third or fourth word, is another in each.
    assert sizes == {"what causes disease": 20, "is disease": 20, ANY: 41}
