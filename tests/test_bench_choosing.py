"""The shares of the oracle's gain by hand, and the command on an evaluation of stored samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bench import choosing
from bench.choosing import Options, main, share_of_gain, table
from forage.data.records import read_questions
from forage.errors import UserError
from forage.evaluation.outcomes import Outcome, OutcomeLog
from forage.evaluation.preference.card import ScorerCard, write_scorer
from forage.evaluation.preference.features import PRODUCTS, SCALARS
from forage.evaluation.preference.model import Head
from tests.rated_samples import finish_evaluation, likes_passages, samples_of
from tests.word_embedder import WordEmbedder

SYSTEMS = {"best_of_8": 1, "learned_8": 0, "self_consistency_8": 2}  # which sample each of them chose


@pytest.fixture
def evaluation(tiny, tiny_protocol, tmp_path, monkeypatch):
    """As evaluate.py leaves it; sample 0 answers badly, and sample 1 well."""
    monkeypatch.setattr(choosing, "Embedder", lambda name: WordEmbedder(name))
    out = tmp_path / "eval"
    for question in read_questions(tiny / "data" / "eval.jsonl"):
        good, bad, half, other = samples_of(question, tiny_protocol)
        tried = (half, good, bad, other)
        for system, place in SYSTEMS.items():
            OutcomeLog(out, f"warm/{system}").append(Outcome(tried[place], tried), 1, 1)
        OutcomeLog(out, "warm/single").append(Outcome(half, (half,)), 1, 1)
        revised = (*tried[:3], replace(other, ids=(*other.ids[:-1], 7)))
        OutcomeLog(out, "warm/tpo").append(Outcome(revised[1], revised), 1, 1)
    finish_evaluation(out, tiny)
    return out


def said_by(capsys, *arguments, status):
    with pytest.raises(SystemExit) as ended:
        main(Options(*arguments))
    assert ended.value.code == status
    return capsys.readouterr().out


def test_shares_by_hand():
    worth = {"single": np.array([0.4, 0.2]), "mine": np.array([0.5, 0.2]), "oracle": np.array([0.5, 0.3])}
    assert share_of_gain(worth, "mine")["mean"] == pytest.approx(0.5)
    assert share_of_gain(worth, "oracle") == {"mean": 1, "low": 1, "high": 1}
    assert share_of_gain(worth, "single")["mean"] == 0
    assert [line.split(" | ")[0] for line in table(worth, "mine")[2:]] == ["| oracle", "| mine", "| single"]
    assert table(worth, "mine")[-1].endswith("| +0.0500 (+0.0000 to +0.1000) |")


def test_what_the_systems_chose_is_compared(evaluation, capsys):
    said = said_by(capsys, evaluation, status=1)
    assert "answer_similarity of 2 questions, 4 samples each" in said
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in said.splitlines() if line.startswith("| ")}
    assert "| 1.000 (1.000 to 1.000) |" in rows["oracle"]
    assert "| 0.000 (0.000 to 0.000) |" in rows["learned_8"]  # it chose what the first sample is
    assert {"single", "best_of_8", "self_consistency_8", "agreement", "support", "well_formed"} <= rows.keys()
    assert "tpo" not in rows  # it tried another one
    assert "learned_8: share of the oracle's gain 0 (bar 0.5) SHORT" in said


def test_a_scorer_chooses_among_what_is_stored(evaluation, tmp_path, capsys):
    likes_passages(tmp_path / "mine")
    said = said_by(capsys, evaluation, (tmp_path / "mine",), status=1)
    assert "mine: share of the oracle's gain 1 (bar 0.5) ok" in said


def test_what_is_missing_is_told(evaluation, tmp_path):
    with pytest.raises(UserError, match=r"config.json is missing; name the --output-dir of an evaluate.py"):
        main(Options(tmp_path))
    with pytest.raises(UserError, match=r"--policy cold: .*eval has warm"):
        main(Options(evaluation, policy="cold"))
    with pytest.raises(UserError, match="has no samples of warm/fused_8"):
        main(Options(evaluation, candidates="fused_8"))
    with pytest.raises(UserError, match="no sample has a better answer_similarity than the first"):
        main(Options(evaluation, candidates="single"))
    (evaluation / "outcomes" / "warm" / "learned_8.jsonl").unlink()
    with pytest.raises(UserError, match="has no learned_8 of warm; give a --scorer, or play it"):
        main(Options(evaluation))


def test_the_untrained_are_refused_by_their_embedder(evaluation, tmp_path):
    torch.manual_seed(0)
    head = Head(len(SCALARS) + 16 * len(PRODUCTS), 4, 0)
    card = ScorerCard("others", "", 16, 4, 0, {}, {}, {}, {}, {})
    write_scorer(tmp_path / "other", card, head, WordEmbedder(turn=5).probe())
    with pytest.raises(UserError, match="was trained with embedder others"):
        main(Options(evaluation, (tmp_path / "other",)))
