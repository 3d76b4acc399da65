"""Self-consistency: majority and medoid by hand."""

import pytest

from forage.extras.testtime.best_of import SelfConsistency, agreed
from tests.scripted_engine import check_books, run, turns


@pytest.mark.parametrize(
    ("answers", "place"),
    [
        (["heat", "The rest.", "rest"], 1),  # two of three say the same
        (["x y z w", "a b", "b c", "c d"], 2),  # none does: the middle one
        (["", "", "rest"], 2),
        (["", ""], 0),
        # Two of five are equal, which is no majority: the medoid is another one.
        (["q r", "q r", "a b c", "a b d", "a b"], 4),
    ],
)
def test_which_answer_is_agreed_on(answers, place):
    assert agreed(answers) == place


def test_the_agreed_answer_counts(protocol):
    samples = {"0": ("a", "heat"), "1": ("b", "Rest"), "2": ("c", "rest."), "3": ("d", "the rest")}
    outcome, engine = run(SelfConsistency(n=4), protocol, turns(samples))
    assert outcome.episode.id == "q1/1"
    assert engine.most_at_once == 4
    check_books(outcome, engine)
