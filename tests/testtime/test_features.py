"""Features by hand: of finished episodes and of ones that go on; whatever the order, and without the reference."""

from dataclasses import replace

import numpy as np
import pytest

from forage.testtime.best_of import candidates
from forage.testtime.examples import cut_after
from forage.testtime.features import (
    PRODUCTS,
    SCALARS,
    Vectors,
    cosines,
    features,
    products,
)
from tests.scripted_engine import QUESTION, run, turns
from tests.word_embedder import WordEmbedder

PASSAGES = {"gout": {"a#0": "Rest mends gout.", "b#0": "Ice helps."}, "toe": {"b#0": "Ice helps."}}
SAMPLES = {"0": ("gout", "rest rest", -0.5), "1": ("toe", "ice", -0.1), "2": (None, "ice", -0.3)}


@pytest.fixture(scope="module")
def protocol(tiny_protocol):
    return tiny_protocol


@pytest.fixture(scope="module")
def played(protocol):
    """Three real episodes of the agent's: two searched."""

    async def three(agent, question, seed):
        return await candidates(agent, question, range(3), seed)

    return run(three, protocol, turns(SAMPLES), PASSAGES)[0]


def columns(protocol, episodes, embedder=None):
    rows_NF = features(embedder or WordEmbedder(), protocol, QUESTION, episodes)
    return dict(zip(SCALARS, rows_NF.T, strict=False))


def test_cosines_by_hand():
    found = [np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros((0, 2))]
    vectors = Vectors(np.array([1.0, 0.0]), np.array([[0.6, 0.8], [1.0, 0.0]]), np.array([[0.0, 1.0], [0, 0]]), found)
    by_name = {name: column.tolist() for name, column in cosines(vectors).items()}
    assert by_name["question_answer"] == [0.6, 1.0]
    assert by_name["question_query"] == [0.0, 0.0]
    assert by_name["query_answer"] == [0.8, 0.0]
    assert [by_name[f"answer_passage_{which}"][0] for which in ("1", "2", "3", "max", "mean")] == pytest.approx(
        [0.6, 0.8, 0.0, 0.8, 0.7]
    )
    assert [by_name[f"answer_passage_{which}"][1] for which in ("1", "2", "3", "max", "mean")] == [0.0] * 5
    assert by_name["other_answers"] == pytest.approx([0.6, 0.6])
    assert by_name["answer_other_passages"] == [0.0, 1.0]  # only the first has a passage
    assert by_name["other_passages"] == [0.0, 0.0]
    # question * answer, question * nearest passage, answer * nearest passage: the second is nearer to the answer.
    assert products(vectors).tolist() == [[0.6, 0.0, 1.0, 0.0, 0.0, 0.8], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]


def test_a_row_by_hand(protocol, played):
    by_name = columns(protocol, played)
    wanted = {
        "answered": [1, 1, 1], "open": [0, 0, 0], "searches": [1, 1, 0], "hits": [2, 1, 0], "well_formed": [1, 1, 0.5],
        "answer_words": np.log1p([2, 1, 1]), "repeated_words": [0.5, 0, 0], "confidence": np.exp([-0.5, -0.1, -0.3]),
        "support": [1, 1, 0], "agreement": [0, 0.5, 0.5], "turn_confidence": np.exp([-0.5, -0.1, -0.3]),
    }  # fmt: skip
    for name, values in wanted.items():
        assert by_name[name] == pytest.approx(values), name
    assert by_name["other_answers"] == pytest.approx([0, 0.5, 0.5], abs=0.3)  # words may share a place


def test_an_episode_that_goes_on_has_no_answer_yet(protocol, played):
    by_name = columns(protocol, [cut_after(played[0], 1), cut_after(played[1], 1)])
    assert by_name["open"].tolist() == [1, 1]
    nothing = ["answered", "question_answer", "query_answer", "answer_passage_max", "other_answers", "agreement",
               "support", "confidence", "answer_words"]  # fmt: skip
    assert not any(by_name[name].any() for name in nothing)
    assert by_name["question_query"][0] > 0
    assert by_name["question_passage_max"][0] > by_name["question_passage_max"][1]  # it found gout
    assert by_name["turn_confidence"] == pytest.approx(np.exp([-0.5, -0.1]))


def test_every_feature_is_a_number_whatever_the_episode(protocol, played):
    silent = replace(played[2], answer="", stop="turns")
    unplayed = replace(
        played[2], ids=played[2].ids[:3], mask=(0,) * 3, logprobs=(0.0,) * 3, turns=(), answer="", stop="tokens"
    )
    rows_NF = features(WordEmbedder(), protocol, QUESTION, [silent, unplayed, played[0]])
    assert rows_NF.shape == (3, len(SCALARS) + len(PRODUCTS) * 16)
    assert np.isfinite(rows_NF).all()
    assert features(WordEmbedder(), protocol, QUESTION, [unplayed]).shape[0] == 1  # alone
