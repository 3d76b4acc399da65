"""Tree search: it goes on from the turn that promises most, and pays for shared turns once."""

import math

import pytest

from forage.agent.agent import EpisodeBuilder
from forage.agent.protocol import write_answer, write_call
from forage.extras.testtime.scorers import Oracle
from forage.extras.testtime.tree import Node, TreeSearch
from tests.scripted_engine import QUESTION, check_books, run

WORTH = {"poor": 0.1, "fair": 0.5, "great": 1.0, "": 0.0, "worse": 0.2}
SCORER = Oracle(lambda episodes, questions: [WORTH[episode.answer] for episode in episodes])
FOUND = {"bad": {"x#0": "Nothing."}, "good": {"y#0": "All."}}


def say(name, turn, text):
    """The first rollout's query is bad, others' are good; only the second answer to the good query is great."""
    if turn == 0:
        return write_call("bad" if name == "0" else "good")
    if '"query": "bad"' in text:
        return write_answer("poor")
    return write_answer({"1": "fair", "2": "great"}.get(name, "worse"))


def test_it_goes_on_from_the_turn_that_promises_most(protocol):
    outcome, engine = run(TreeSearch(SCORER, rollouts=3, width=2, concurrency=1), protocol, say, FOUND)
    assert (outcome.episode.id, outcome.episode.answer) == ("q1/2", "great")
    first, second, third = outcome.tried
    assert third.ids[: third.turns[0].end] == second.ids[: second.turns[0].end]
    assert third.hits == second.hits == ("y#0",)
    # Three rollouts of two turns, of which one turn was shared: five requests.
    assert [request.episode for request in engine.requests] == ["q1/0", "q1/0", "q1/1", "q1/1", "q1/2"]
    assert engine.requests[4].ids == engine.requests[3].ids
    assert engine.requests[4].seed != engine.requests[3].seed
    assert first.hits == ("x#0",)
    shared = len(protocol.turn_ids(write_call("good")))  # which is paid once
    assert (outcome.extra_sampled, outcome.extra_read) == (-shared, shared)
    assert (outcome.turns, outcome.searches) == (5, 2)  # of three episodes of two turns and a search each
    check_books(outcome, engine)


def relevance_of(found):
    """Values of turns by what they found, which keep what they were asked about."""
    asked = []

    def values(protocol, question, episodes):
        asked.append(tuple((len(episode.turns), episode.hits, episode.answer, episode.stop) for episode in episodes))
        assert "GOLD" not in question.answer
        return [found[episode.hits[0]] for episode in episodes]

    return values, asked


def test_what_a_turn_found_counts_before_its_answers_do(protocol):
    """Both queries' first answers are equally poor; with values, the third rollout goes on from what found all."""

    def poor(name, turn, text):
        if turn == 0:
            return write_call("bad" if name == "0" else "good")
        return write_answer("great" if name == "2" and '"query": "good"' in text else "poor")

    plain, _ = run(TreeSearch(SCORER, rollouts=3, width=2, concurrency=1), protocol, poor, FOUND)
    assert (plain.episode.answer, plain.tried[2].hits) == ("poor", ("x#0",))  # the first of equal ones
    values, asked = relevance_of({"x#0": 0.1, "y#0": 0.9})

    def both(protocol, question, episodes):
        return (values if episodes[0].stop == "search" else SCORER)(protocol, question, episodes)

    search = TreeSearch(both, values=True, rollouts=3, width=2, concurrency=1)
    outcome, engine = run(search, protocol, poor, FOUND)
    assert (outcome.episode.answer, outcome.tried[2].hits) == ("great", ("y#0",))
    # Turns of one depth are judged together, without what came after them.
    assert asked == [
        ((1, ("x#0",), "", "search"),),
        ((1, ("x#0",), "", "search"), (1, ("y#0",), "", "search")),
    ]
    check_books(outcome, engine)


def test_uct_by_hand():
    root = Node(EpisodeBuilder("r", QUESTION, [], "base"), visits=4)
    child = root.grow()
    assert child.uct(1.0) == math.inf
    child.visits, child.total = 1, 0.5
    assert child.uct(1.0) == pytest.approx(0.5 + math.sqrt(math.log(4)))
    child.value = 0.9
    assert child.uct(1.0) == pytest.approx(0.7 + math.sqrt(math.log(4)))
    child.back_up(0.25, visits=1)
    assert (child.visits, child.total, root.visits, root.total) == (2, 0.75, 5, 0.25)
