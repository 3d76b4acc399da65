"""The pairwise loss by hand; a head that learns an order, the same each time; the scorer that is read back."""

import asyncio
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from forage.agent.agent import Agent, BatchedSearch
from forage.data.records import Question
from forage.errors import UserError
from forage.extras.testtime.examples import cut_after
from forage.extras.testtime.features import FEATURES, OPEN
from forage.extras.testtime.preference import Head, Pairs, Preference, bradley_terry, fit, write_scorer
from forage.extras.testtime.scorers import scores_of
from tests.factories import QUESTION
from tests.rated_samples import samples_of
from tests.scripted_engine import library
from tests.word_embedder import WordEmbedder

KNOWN = FEATURES.index("support")


def rows_of(count, seed=0):
    """Random rows, and each one's worth, which is a feature of them."""
    rows_NF = np.random.default_rng(seed).normal(size=(count, len(FEATURES))).astype(np.float32)
    rows_NF[:, OPEN] = np.arange(count) % 2
    return rows_NF, rows_NF[:, KNOWN].astype(np.float64)


def pairs_by(worth_N, group=8):
    """All pairs among every eight rows."""
    number_N = np.arange(len(worth_N)) // group
    together_NN = number_N[:, None] == number_N[None, :]
    better, worse = np.nonzero((worth_N[:, None] > worth_N[None, :]) & together_NN)
    return Pairs(better, worse, worth_N[better] - worth_N[worse])


def right(head, rows_NF, worth_N):
    """Share of all pairs in the right order."""
    scores, pairs = np.array(head.scores(rows_NF)), pairs_by(worth_N)
    return (scores[pairs.better_P] > scores[pairs.worse_P]).mean()


def test_the_loss_by_hand():
    def loss(better, worse, weights):
        return bradley_terry(*map(torch.tensor, (better, worse, weights))).item()

    assert loss([1.0], [0.0], [1.0]) == pytest.approx(math.log(1 + 1 / math.e))
    assert loss([1.0], [1.0], [0.2]) == pytest.approx(math.log(2))
    assert loss([1.0, 1.0], [0.0, 1.0], [3.0, 1.0]) == pytest.approx((3 * 0.313262 + 0.693147) / 4, abs=1e-5)


def test_an_order_is_learnt_from_pairs_and_holds_for_other_rows():
    rows_NF, worth_N = rows_of(400)
    head = fit(rows_NF, pairs_by(worth_N))
    assert right(head, rows_NF, worth_N) > 0.9
    assert right(head, *rows_of(80, seed=1)) > 0.8


def test_equal_inputs_give_an_equal_head_and_other_draws_stay():
    rows_NF, worth_N = rows_of(20)
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    one, two = (fit(rows_NF, pairs_by(worth_N), steps=10) for _ in range(2))
    assert torch.rand(1) == wanted
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    other = fit(rows_NF, pairs_by(worth_N), seed=1, steps=10)
    assert one.scores(rows_NF) != other.scores(rows_NF)


# The scorer


ASKED = replace(QUESTION, relevant_chunk_ids=("g#0",))


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    write_scorer(tmp_path, Head(), WordEmbedder().probe(), {"embedder": "words"})
    return tmp_path


def test_a_scorer_is_read_back_whatever_its_embedder_is_called(folder):
    rows_NF = np.ones((2, len(FEATURES)), np.float32)
    torch.manual_seed(0)
    head = Head()
    assert Preference.load(folder, WordEmbedder("a/folder/of/words")).head.scores(rows_NF) == head.scores(rows_NF)
    assert set(json.loads((folder / "scorer.json").read_text())) == {"head", "embedder"}


def test_another_embedder_is_refused(folder):
    other = WordEmbedder("others", turn=3)
    with pytest.raises(UserError, match=f"was trained with another embedder than {other.name}"):
        Preference.load(folder, other)


def test_it_scores_like_any_other_and_never_sees_the_reference(folder, tiny_protocol):
    scorer, samples = Preference.load(folder, WordEmbedder()), samples_of(ASKED, tiny_protocol)
    agent = Agent(None, tiny_protocol, BatchedSearch(library({}), in_line=True))

    def scores(question, episodes):
        return asyncio.run(scores_of(agent, scorer, question, episodes))

    plain = scores(ASKED, samples)
    assert all(0 < score < 1 for score in plain)
    assert len(set(plain)) == 4
    labelled = Question(ASKED.id, ASKED.question, "Thunder, lightning, umbrella.", "x", "y")
    assert scores(labelled, samples) == plain
    assert scores(ASKED, samples[::-1])[::-1] == pytest.approx(plain, abs=1e-6)
    assert len(scores(ASKED, [cut_after(episode, 1) for episode in samples])) == 4
    assert scores(ASKED, []) == []
