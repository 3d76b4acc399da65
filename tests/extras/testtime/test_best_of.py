"""Best of n: the scorer's favourite, wherever it stands; what it cost; failures; equal seeds.

Self-consistency: majority and medoid by hand.
"""

import pytest

from forage.extras.testtime.best_of import BestOf, agreed
from forage.extras.testtime.scorers import Oracle, agreement, best_index, confidence
from tests.factories import answering
from tests.scripted_engine import QUESTION, check_books, run, turns

# The third is the one its tokens are surest of; the first and the last are most alike.
SAMPLES = {
    "0": ("gout", "rest", -0.9),
    "1": ("gout", "heat", -0.8),
    "2": ("gout", "ice", -0.1),
    "3": ("gout", "rest", -0.7),
}


@pytest.mark.parametrize(
    ("scorer", "best"),
    [
        (confidence, 2),
        (agreement, 0),
        (Oracle(lambda episodes, questions: [float(e.answer == "heat") for e in episodes]), 1),
    ],
)
def test_the_scorers_favourite_counts(protocol, scorer, best):
    outcome, engine = run(BestOf(scorer, n=4), protocol, turns(SAMPLES))
    assert (outcome.episode.id, outcome.episode.answer) == (f"q1/{best}", SAMPLES[str(best)][1])
    assert [episode.id for episode in outcome.tried] == ["q1/0", "q1/1", "q1/2", "q1/3"]
    check_books(outcome, engine)


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
    episodes = answering(*answers)
    assert best_index(agreed(None, QUESTION, episodes), episodes) == place
