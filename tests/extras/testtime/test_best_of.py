"""Best of n: the scorer's favourite, wherever it stands; what it cost; failures; equal seeds."""

import pytest

from forage.engines.base import EngineError
from forage.extras.testtime.best_of import BestOf
from forage.extras.testtime.scorers import Oracle, agreement, confidence
from tests.scripted_engine import check_books, run, turns

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


def test_an_engine_error_ends_only_its_own_candidate(protocol):
    def say(name, turn, text):
        return EngineError("gone") if name == "2" and turn else turns(SAMPLES)(name, turn, text)

    outcome, engine = run(BestOf(confidence, n=4), protocol, say)
    assert [episode.stop for episode in outcome.tried] == ["answer", "answer", "engine", "answer"]
    assert outcome.episode.id == "q1/3"
    check_books(outcome, engine)
