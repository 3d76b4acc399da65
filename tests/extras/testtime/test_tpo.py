"""TPO: the revision that heeds the critique of best beside worst is what counts, and all tokens are counted."""

from forage.agent.protocol import write_answer, write_call
from forage.extras.testtime.scorers import Oracle
from forage.extras.testtime.tpo import TPO
from tests.scripted_engine import check_books, run

FIRST = {"0": "heat", "1": "rest", "2": "cold"}
# Answers are worth this much: "rest" is best at first, "cold" worst.
WORTH = {"heat": 0.5, "rest": 0.6, "cold": 0.1, "rest and ice": 0.8, "rest and ice daily": 1.0, "": 0.0}
SCORER = Oracle(lambda episodes, questions: [WORTH[episode.answer] for episode in episodes])


def say(name, turn, text):
    """A policy that can criticise and revise. Only who heeds the right critique of the right answer gets further."""
    if name.startswith("critique"):
        assert "Two answers to a question: the first is better" in text
        if "Better answer: rest Worse answer: cold" in text:
            return "Add <answer>ice</answer>."
        return "Say how often." if "Better answer: rest and ice Worse answer: cold" in text else "wrong pair"
    if turn == 0:
        return write_call("gout")
    if "Criticism of it: Add < answer>ice< /answer>." in text and "earlier answer was: rest " in text:
        return write_answer("rest and ice" if name == "4" else "cold")
    if "Criticism of it: Say how often." in text and "earlier answer was: rest and ice " in text:
        return write_answer("rest and ice daily" if name == "8" else "heat")
    return write_answer(FIRST[name])


def test_the_last_revision_is_the_best(protocol):
    outcome, engine = run(TPO(SCORER, n=3, rounds=2), protocol, say)
    assert (outcome.episode.id, outcome.episode.answer) == ("q1/8", "rest and ice daily")
    assert [episode.id for episode in outcome.tried] == [f"q1/{n}" for n in range(9)]
    assert engine.most_at_once == 3
    check_books(outcome, engine, asides=2)
