"""Q-values of a tiny tree, pairs and accuracies by hand; and that a cut episode is what the tree search judges."""

from dataclasses import replace

import numpy as np
import pytest

from forage.agent.episode import Search, Turn
from forage.agent.protocol import write_answer, write_call
from forage.agent.rewards import get_mrr
from forage.data.records import Question
from forage.extras.testtime.preference import OPEN, Pairs
from forage.extras.testtime.train_scorer import cut_after, examples_of, pairs_of, right_share, siblings_of
from tests.factories import EPISODE
from tests.rated_samples import samples_of
from tests.scripted_engine import run
from tests.word_embedder import WordEmbedder

QUESTIONS = [
    Question(f"q{n}", f"What mends disease {n}?", f"Remedy {n}.", relevant_chunk_ids=(f"d{n}#0",)) for n in (0, 1)
]


def test_pairs_by_hand():
    better, worse, apart = pairs_of(np.array([0.9, 0.5, 0.47]), 4)
    assert list(zip(better.tolist(), worse.tolist(), strict=True)) == [(4, 5), (4, 6)]
    assert apart == pytest.approx([0.4, 0.43])


def test_only_candidates_of_one_question_and_depth_are_compared(tiny_protocol):
    """Sample 0 is right in all, 1 in nothing: a pair of finished ones and a pair of first turns for each question."""
    played = {question: samples_of(question, tiny_protocol, 2) for question in QUESTIONS}
    rows_NF, pairs = examples_of(played, WordEmbedder(), tiny_protocol, {"mrr": get_mrr})
    assert len(rows_NF) == 2 * 4
    assert list(zip(pairs.better_P.tolist(), pairs.worse_P.tolist(), strict=True)) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert rows_NF[:, OPEN].tolist() == [0, 0, 1, 1] * 2


def test_accuracy_by_hand():
    pairs = Pairs(np.array([0, 0, 1]), np.array([1, 2, 2]), np.ones(3))
    assert right_share(np.array([0.9, 0.5, 0.5]), pairs) == pytest.approx(2.5 / 3)


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
    assert (list(finished[0]), finished[1].tolist()) == (tree, [0.2, 0.6, 1, 0])
    assert [e.ids for e in first[0]] == [(9, 1, 2, 8), (9, 1, 3, 8)]
    assert first[1] == pytest.approx([0.4, 1])
    assert ([e.ids for e in second[0]], second[1].tolist()) == ([(9, 1, 2, 8, 4, 8)], [0.6])


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
