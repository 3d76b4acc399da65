"""Q-values of a tiny tree, pairs and accuracies by hand; and that a cut episode is what the tree search judges."""

from dataclasses import replace

import numpy as np
import pytest

from forage.agent.episode import Search, Turn
from forage.agent.protocol import write_answer, write_call
from forage.testtime.examples import Examples, cut_after, pairs_of, right_shares, siblings_of
from forage.testtime.preference import Pairs
from tests.factories import EPISODE
from tests.scripted_engine import run


def examples(q_values, questions, depths=None):
    count = len(q_values)
    return Examples(
        np.zeros((count, 1), np.float32), np.array(q_values), np.array(questions), np.array(depths or [0] * count)
    )


def listed(pairs):
    return list(zip(pairs.better_P.tolist(), pairs.worse_P.tolist(), strict=True))


def test_pairs_by_hand():
    several = examples([0.9, 0.5, 0.45], [0, 0, 0])
    pairs = pairs_of(several, 0.1)
    assert listed(pairs) == [(0, 1), (0, 2)]
    assert pairs.weights_P == pytest.approx([0.4, 0.45])
    assert listed(pairs_of(several, 0.0)) == [(0, 1), (0, 2), (1, 2)]
    assert listed(pairs_of(examples([0.5, 0.5], [0, 0]), 0.0)) == []


def test_only_candidates_of_one_question_and_depth_are_compared():
    several = examples([0.1, 0.9, 0.3, 0.8], [0, 1, 0, 0], [0, 0, 0, 1])
    assert listed(pairs_of(several)) == [(2, 0)]
    assert listed(pairs_of(several.of([]))) == []
    assert several.of([1]).q_N.tolist() == [0.9]


def test_accuracy_by_hand():
    pairs = Pairs(np.array([0, 0, 1, 3]), np.array([1, 2, 2, 4]), np.ones(4))
    scores_N = np.array([0.9, 0.5, 0.5, 0.1, 0.2])
    assert right_shares(scores_N, pairs, np.array([0, 0, 0, 1, 1])) == pytest.approx([2.5 / 3, 0])


def episode(*turns, prompt=(9,), found=(8,)):
    """One whose turns are these tokens; what each finds is one token."""
    ids, places = list(prompt), []
    for number, turn in enumerate(turns):
        places.append(Turn(len(ids), len(ids) + len(turn)))
        ids += [*turn, *(found if number + 1 < len(turns) else ())]
    length = len(ids)
    searches = tuple(Search(number, "q", ("a",)) for number in range(len(turns) - 1))
    return replace(
        EPISODE, ids=tuple(ids), mask=(0,) * length, logprobs=(0.0,) * length, turns=tuple(places), searches=searches
    )


def test_a_tree_by_hand():
    # Two share the turn (1, 2), of which one searched once more; the third began otherwise; the fourth did not search.
    tree = [episode((1, 2), (3,)), episode((1, 2), (4,), (5,)), episode((1, 3), (3,)), episode((6,))]
    finished, first, second = siblings_of(tree, np.array([0.2, 0.6, 1, 0]))
    assert (finished[0], list(finished[1]), finished[2].tolist()) == (0, tree, [0.2, 0.6, 1, 0])
    assert (first[0], [e.ids for e in first[1]]) == (1, [(9, 1, 2, 8), (9, 1, 3, 8)])
    assert first[2] == pytest.approx([0.4, 1])
    assert (second[0], [e.ids for e in second[1]], second[2].tolist()) == (2, [(9, 1, 2, 8, 4, 8)], [0.6])


def test_a_cut_episode_is_what_was_there_then(tiny_protocol):
    """A builder's episode so far, and the finished one cut there, show the same."""
    states = []

    async def watched(agent, question, seed):
        builder = agent.begin(question, f"{question.id}/0")
        while not builder.stop:
            await agent.step(builder, seed)
            states.append(builder.so_far(agent.protocol))
        return agent.finish(builder)

    def say(name, turn, text):
        return write_call("gout") if turn < 2 else write_answer("rest")

    whole, _ = run(watched, tiny_protocol, say, {"gout": {"a#0": "Rest."}})
    for number in (1, 2):
        cut = cut_after(whole, number)
        assert replace(states[number - 1], seconds={}, transcript="") == replace(cut, seconds={})
        assert (cut.stop, cut.answer, len(cut.searches)) == ("search", "", number)
    assert states[2].ids == whole.ids
