"""A learned scorer from its folder: what it refuses, and that it is a scorer like any other."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from forage.agent.agent import Agent, BatchedSearch
from forage.errors import UserError
from forage.evaluation.preference.card import ScorerCard, read_scorer, write_scorer
from forage.evaluation.preference.features import PRODUCTS, SCALARS
from forage.evaluation.preference.model import Head
from forage.evaluation.preference.q_values import cut_after
from forage.evaluation.preference.scorer import Preference
from forage.evaluation.scorers import scores_of
from tests.factories import QUESTION
from tests.rated_samples import samples_of
from tests.scripted_engine import library
from tests.word_embedder import WordEmbedder

ASKED = replace(QUESTION, relevant_chunk_ids=("g#0",))
CARD = ScorerCard("words", "", 16, 8, 2, {}, {"mrr": 1.0}, {"questions": 1}, {"questions": 0}, {})


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    head = Head(len(SCALARS) + 16 * len(PRODUCTS), 8, 2)
    write_scorer(tmp_path, CARD, head, WordEmbedder().probe())
    return tmp_path


@pytest.fixture(scope="module")
def samples(tiny_protocol):
    return samples_of(ASKED, tiny_protocol)


def changed(folder, **values):
    card = json.loads((folder / "scorer.json").read_text())
    (folder / "scorer.json").write_text(json.dumps(card | values))


def test_what_is_written_is_read_back(folder):
    card, head, probe_D = read_scorer(folder)
    assert replace(card, head="") == CARD
    assert len(card.head) == 16
    assert probe_D.shape == (16,)
    rows_NF = np.ones((2, len(SCALARS) + 48), np.float32)
    assert head.scores(rows_NF) == Preference.load(folder, WordEmbedder()).head.scores(rows_NF)


def test_the_same_embedder_under_another_name_will_do(folder):
    renamed = Preference.load(folder, WordEmbedder("a/folder/of/words"))
    rows_NF = np.ones((2, len(SCALARS) + 48), np.float32)
    assert renamed.head.scores(rows_NF) == Preference.load(folder, WordEmbedder()).head.scores(rows_NF)


@pytest.mark.parametrize("other", [WordEmbedder("others", turn=3), WordEmbedder("longer", dimension=32)])
def test_another_embedder_is_refused(folder, other):
    with pytest.raises(
        UserError, match=f"was trained with embedder words, and this is {other.name} with other weights"
    ):
        Preference.load(folder, other)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"scalars": [*SCALARS, "colour"]}, r"was trained with other features \(colour\)"),
        ({"scalars": list(SCALARS[1:])}, r"was trained with other features \(answered\)"),
        ({"scalars": list(SCALARS[::-1])}, "the features in another order"),
        ({"format": 2}, "has format 2, this code reads up to 1"),
        ({"head": "0" * 16}, "is not what its scorer.json was written for"),
        ({"rank": None, "scalars": None}, "is no card of a scorer"),
    ],
)
def test_other_folders_are_refused(folder, values, told):
    changed(folder, **values)
    with pytest.raises(UserError, match=told):
        read_scorer(folder)


def test_a_folder_without_a_scorer_is_told(tmp_path):
    with pytest.raises(UserError, match=r"holds no learned scorer \(no scorer.json\); make one with python -m"):
        read_scorer(tmp_path)
    (tmp_path / "scorer.json").write_text("{")
    with pytest.raises(UserError, match="is no card of a scorer"):
        read_scorer(tmp_path)


def test_missing_weights_are_told(folder):
    (folder / "head.safetensors").unlink()
    with pytest.raises(UserError, match=r"head.safetensors is not what its scorer.json was written for"):
        read_scorer(folder)


def test_it_scores_like_any_other_and_never_sees_the_reference(folder, samples, tiny_protocol):
    scorer = Preference.load(folder, WordEmbedder())
    agent = Agent(None, tiny_protocol, BatchedSearch(library({}), in_line=True))

    def scores(question, episodes):
        return asyncio.run(scores_of(agent, scorer, question, episodes))

    plain = scores(ASKED, samples)
    assert all(0 < score < 1 for score in plain)
    assert len(set(plain)) == 4
    labelled = replace(
        ASKED, answer="Thunder, lightning, umbrella.", question_type="x", focus="y", relevant_chunk_ids=()
    )
    assert scores(labelled, samples) == plain
    assert scores(ASKED, samples[::-1])[::-1] == pytest.approx(plain, abs=1e-6)
    assert len(scores(ASKED, [cut_after(episode, 1) for episode in samples])) == 4
    assert scores(ASKED, []) == []
