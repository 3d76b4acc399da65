"""Q-values of a tiny tree by hand, and that a cut episode is what the tree search judges."""

import math
from dataclasses import replace

import numpy as np
import pytest

from forage.agent.episode import Search, Turn
from forage.agent.protocol import write_answer, write_call
from forage.evaluation.preference.q_values import cut_after, siblings_of
from tests.factories import EPISODE
from tests.scripted_engine import run


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
    rewards_NR = np.array([[0.2, 1], [0.6, 0], [1, 0], [0, 0]])
    finished, first, second = siblings_of(tree, rewards_NR)
    assert (finished.depth, first.depth, second.depth) == (0, 1, 2)
    assert list(finished.episodes) == tree
    assert finished.q_NR.tolist() == rewards_NR.tolist()
    assert [e.ids for e in first.episodes] == [(9, 1, 2, 8), (9, 1, 3, 8)]
    assert first.q_NR == pytest.approx(np.array([[0.4, 0.5], [1, 0]]))
    assert [e.ids for e in second.episodes] == [(9, 1, 2, 8, 4, 8)]
    assert second.q_NR.tolist() == [[0.6, 0]]


def test_other_results_or_another_prompt_make_another_node():
    tree = [episode((1,), (2,)), episode((1,), (2,), found=(7,)), episode((1,), (2,), prompt=(9, 9))]
    _, first = siblings_of(tree, np.array([[0.0], [0.5], [1.0]]))
    assert first.q_NR.tolist() == [[0.0], [0.5], [1.0]]


def test_a_reward_that_does_not_exist_has_no_value():
    _, first = siblings_of([episode((1,), (2,)), episode((1,), (3,))], np.array([[math.nan, 1], [math.nan, 0]]))
    assert np.isnan(first.q_NR[0, 0])
    assert first.q_NR[0, 1] == 0.5


def test_episodes_of_one_turn_lead_to_nothing():
    assert [siblings.depth for siblings in siblings_of([episode((1,)), episode((2,))], np.zeros((2, 1)))] == [0]


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
    assert [len(state.turns) for state in states] == [1, 2, 3]
    for number in (1, 2):
        cut = cut_after(whole, number)
        assert replace(states[number - 1], seconds={}, transcript="") == replace(cut, seconds={})
        assert (cut.stop, cut.answer, len(cut.searches)) == ("search", "", number)
    assert states[2].stop == whole.stop == "answer"
    assert states[2].ids == whole.ids
