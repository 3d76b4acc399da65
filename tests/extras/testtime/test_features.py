"""Features by hand: of finished episodes and of ones that go on; whatever the order, and without the reference."""

import numpy as np
import pytest

from forage.extras.testtime.best_of import candidates
from forage.extras.testtime.preference import FEATURES, cosines, features
from forage.extras.testtime.train_scorer import cut_after
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
    return dict(zip(FEATURES, rows_NF.T, strict=True))


VECTORS = {"asked": (1, 0), "both": (0.6, 0.8), "one": (1, 0), "other": (0, 1)}


class Given:
    """An embedder of four texts."""

    def encode_queries(self, texts):
        return np.array([VECTORS[text] for text in texts], np.float32)

    encode_passages = encode_queries


def test_cosines_by_hand():
    found = cosines(Given(), "asked", ["both", "one", ""], [["one", "other"], [], ["other"]])
    assert {name: pytest.approx(list(column)) for name, column in found.items()} == {
        "question_answer": [0.6, 1, 0], "question_passage": [1, 0, 0], "answer_passage": [0.8, 0, 0],
    }  # fmt: skip


def test_a_row_by_hand(protocol, played):
    by_name = columns(protocol, played)
    wanted = {
        "open": [0, 0, 0], "well_formed": [1, 1, 0.5],
        "answer_words": np.log1p([2, 1, 1]), "confidence": np.exp([-0.5, -0.1, -0.3]),
        "support": [1, 1, 0], "agreement": [0, 0.5, 0.5],
    }  # fmt: skip
    for name, values in wanted.items():
        assert by_name[name] == pytest.approx(values), name


def test_an_episode_that_goes_on_has_no_answer_yet(protocol, played):
    by_name = columns(protocol, [cut_after(played[0], 1), cut_after(played[1], 1)])
    assert by_name["open"].tolist() == [1, 1]
    nothing = ["question_answer", "answer_passage", "agreement", "support", "confidence",
               "answer_words"]  # fmt: skip
    assert not any(by_name[name].any() for name in nothing)
    assert by_name["question_passage"][0] > by_name["question_passage"][1]  # it found gout
