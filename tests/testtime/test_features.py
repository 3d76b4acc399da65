"""Features by hand: of finished episodes and of ones that go on; whatever the order, and without the reference."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from forage.data.records import Question
from forage.testtime.best_of import candidates
from forage.testtime.examples import cut_after
from forage.testtime.features import (
    PRODUCTS,
    SCALARS,
    Seen,
    Vectors,
    cosines,
    embedded,
    features,
    of_passages,
    products,
    repeated_words,
    with_others,
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


def test_what_a_candidate_shows(protocol, played):
    assert Seen.of(protocol, played[0]) == Seen("rest rest", "gout", ("T: Rest mends gout.", "T: Ice helps."))
    assert Seen.of(protocol, played[2]) == Seen("ice", "", ())


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


def test_the_parts_by_hand():
    assert with_others(*[np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])] * 2).tolist() == [0.5, 0.5, 0.0]
    assert with_others(np.ones((1, 2)), np.ones((1, 2))).tolist() == [0.0]
    assert {name: c.tolist() for name, c in of_passages("p", [np.array([0.2, 0.4])]).items()} == {
        "p_1": [0.2], "p_2": [0.4], "p_3": [0.0], "p_max": [0.4], "p_mean": [pytest.approx(0.3)],
    }  # fmt: skip
    assert repeated_words("rest and rest and ice") == pytest.approx(0.4)
    assert repeated_words("") == 0.0


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


def test_rows_belong_to_candidates_whatever_their_order(protocol, played):
    there = features(WordEmbedder(), protocol, QUESTION, played)
    back = features(WordEmbedder(), protocol, QUESTION, played[::-1])
    assert there == pytest.approx(back[::-1], abs=1e-6)


def test_nothing_that_answers_the_question_is_looked_at(protocol, played):
    blank = Question(QUESTION.id, QUESTION.question, "")
    rewarded = [replace(episode, rewards={"mrr": 1.0}, reward=1.0) for episode in played]
    plain = features(WordEmbedder(), protocol, blank, played)
    assert np.array_equal(features(WordEmbedder(), protocol, QUESTION, rewarded), plain)


def test_each_text_is_embedded_once():
    embedder = WordEmbedder()
    one, other = Seen("ice", "toe", ("T: Ice.", "T: Rest.")), Seen("ice", "toe", ("T: Ice.",))
    vectors = embedded(embedder, "What?", [one, other])
    assert embedder.encoded == 5  # What?, toe, ice, and two passages
    assert [len(found) for found in vectors.passages] == [2, 1]


def test_an_embedder_with_prompts_knows_questions_from_passages():
    asked, told = [], []

    def keeping(texts, into):
        into.extend(texts)
        return WordEmbedder().encode_passages(texts)

    both = SimpleNamespace(
        encode_queries=lambda texts: keeping(texts, asked), encode_passages=lambda texts: keeping(texts, told)
    )
    embedded(both, "What?", [Seen("ice", "toe", ("T: Ice.",))])
    assert (asked, told) == (["What?", "toe"], ["T: Ice.", "ice"])
