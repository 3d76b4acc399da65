"""RM3, with which trained policies are compared: weights by hand."""

from collections import Counter
from types import SimpleNamespace

from bench.expansion import RM3


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
