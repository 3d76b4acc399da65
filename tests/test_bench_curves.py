"""Scores at equal tokens by hand, and the command on an evaluation of stored samples."""

import json
import re
import shutil

import numpy as np
import pytest

from bench import choosing
from bench.curves import Curve, Options, Point, main, point_table
from forage.data.records import read_questions
from forage.errors import UserError
from forage.evaluation.outcomes import Outcome, OutcomeLog
from tests.rated_samples import finish_evaluation, likes_passages, samples_of
from tests.word_embedder import WordEmbedder

CURVE = Curve(np.array([100.0, 200, 400]), np.array([[0.2, 0.6, 0.8], [0, 0, 1]]))


@pytest.mark.parametrize(
    ("tokens", "scores"),
    [(50, [0.2, 0]), (100, [0.2, 0]), (150, [0.4, 0]), (200, [0.6, 0]), (250, [0.65, 0.25]), (400, [0.8, 1]),
     (900, [0.8, 1])],
)  # fmt: skip
def test_a_curve_between_its_sizes(tokens, scores):
    assert CURVE.at(tokens) == pytest.approx(scores)


def test_points_beside_the_curve_by_hand():
    cheap, dear = Point("cheap", 150, np.array([0.3, 0.3])), Point("dear", 500, np.array([0.7, 0.9]))
    [least] = point_table([Point("least", 50, cheap.score_Q)], CURVE)[2:]
    assert "(one sample, which has more)" in least
    lines = point_table([dear, cheap], CURVE)[2:]
    assert lines == [
        "| cheap | 150 | 0.300 | 0.200 | +0.100 (-0.100 to +0.300) |",
        "| dear | 500 | 0.800 | 0.900 (n at its most) | **-0.100** (-0.100 to -0.100) |",
    ]


@pytest.fixture
def evaluation(tiny, tiny_protocol, tmp_path, monkeypatch):
    """As evaluate.py leaves it: the first sample is bad, the second good, the others in between; and a revision."""
    monkeypatch.setattr(choosing, "Embedder", lambda name: WordEmbedder(name))
    out = tmp_path / "eval"
    for question in read_questions(tiny / "data" / "eval.jsonl"):
        good, bad, half, other = samples_of(question, tiny_protocol)
        tried = (bad, good, half, other)
        OutcomeLog(out, "warm/best_of_8").append(Outcome(good, tried), 1, 1)
        OutcomeLog(out, "warm/single").append(Outcome(bad, (bad,)), 1, 1)
        OutcomeLog(out, "warm/tpo").append(Outcome(good, (bad, good), extra_sampled=7), 1, 1)
        OutcomeLog(out, "other/single").append(Outcome(bad, (bad,)), 1, 1)
    finish_evaluation(out, tiny)
    return out


def test_an_evaluation_gives_its_curves_and_points(evaluation, tiny, tiny_protocol, tmp_path, capsys):
    main(Options(evaluation, others=("other/single",), figure=tmp_path / "curves.png"))
    said = capsys.readouterr().out
    assert "answer_similarity of 2 questions; tokens sampled" in said
    rows = {cells[0]: cells[1:] for line in said.splitlines() if (cells := re.findall(r"[^|]+(?= \|)", line))}
    rows = {name.strip(): [cell.strip() for cell in cells] for name, cells in rows.items()}
    asked = read_questions(tiny / "data" / "eval.jsonl")
    sampled = np.array([[episode.sampled for episode in samples_of(question, tiny_protocol)] for question in asked])
    good, bad = sampled.mean(axis=0)[:2]
    assert rows["tokens a question"][:2] == [f"{bad:,.0f}", f"{bad + good:,.0f}"]  # sizes 1 and 2, of 1, 2, 3 and 4
    assert len(rows["tokens a question"]) == 4
    assert rows["oracle"][1:] == ["1.000"] * 3  # the second sample answers in the reference's words
    assert float(rows["oracle"][0]) < 0.5
    assert rows["tpo"][:2] == [f"{bad + good + 7:,.0f}", "1.000"]
    assert rows["other/single"][:2] == [f"{bad:,.0f}", rows["oracle"][0]]
    assert rows["other/single"][2:] == [rows["oracle"][0], "+0.000 (+0.000 to +0.000)"]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    main(Options(evaluation, tokens="all"))
    assert "tokens all" in capsys.readouterr().out


def test_points_are_set_beside_best_of_n_by_a_learned_scorer_too(evaluation, tmp_path, capsys):
    """From the second sample on it chooses the good one, as tpo did."""
    main(Options(evaluation, scorer=(likes_passages(tmp_path / "mine"),)))
    first, second = capsys.readouterr().out.split("Beside best of n by ")[1:]
    assert first.startswith("best_of_8:\n")
    assert second.startswith(f"{tmp_path / 'mine'}:\n")
    (row,) = [line for line in second.splitlines() if line.startswith("| tpo |")]
    assert row.endswith(" | 1.000 | 1.000 | +0.000 (+0.000 to +0.000) |")


@pytest.fixture
def of_a_planner(evaluation):
    """Another policy's evaluation with the same samples of the second question alone."""
    folder = evaluation.with_name("plans")
    shutil.copytree(evaluation, folder)
    (folder / "outcomes" / "warm").rename(folder / "outcomes" / "planner")
    for path in (folder / "outcomes" / "planner").iterdir():
        path.write_text(path.read_text().splitlines(keepends=True)[1])
    (folder / "episodes" / "warm").rename(folder / "episodes" / "planner")
    [source] = json.loads((folder / "policies.json").read_text()).values()
    (folder / "policies.json").write_text(json.dumps({"planner": source}))
    return folder


def test_another_evaluation_is_set_beside_it_on_the_questions_of_both(evaluation, of_a_planner, tmp_path, capsys):
    main(Options(evaluation, beside=(of_a_planner,), figure=tmp_path / "curves.png"))
    said = capsys.readouterr().out
    assert "answer_similarity of 1 questions" in said
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in said.splitlines() if "planner/" in line]
    others = {name: cells for name, *cells in rows}
    assert sorted(others) == ["planner/best of 1", "planner/best of 2", "planner/best of 3", "planner/best of 4",
                              "planner/tpo"]  # fmt: skip
    same = [others[f"planner/best of {size}"] for size in (1, 2, 3, 4)]
    assert [cells[3] for cells in same] == ["+0.000 (+0.000 to +0.000)"] * 4  # of the same samples, the same curve
    assert [cells[1] for cells in same] == [cells[2] for cells in same]
    assert (tmp_path / "curves.png").is_file()


def test_policies_of_one_name_are_refused(evaluation):
    with pytest.raises(UserError, match="two of the evaluations have a policy named warm; evaluate one of them under"):
        main(Options(evaluation, beside=(evaluation,)))


def test_evaluations_of_other_questions_cannot_be_compared(evaluation, of_a_planner):
    for path in (evaluation / "outcomes" / "warm").iterdir():
        path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(UserError, match="no question in common"):
        main(Options(evaluation, beside=(of_a_planner,)))


def test_a_system_that_did_not_play_all_questions_is_told(evaluation, tiny):
    path = evaluation / "outcomes" / "warm" / "tpo.jsonl"
    path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(UserError, match="has warm/tpo of 1 of the 2 questions; re-run the evaluation with it"):
        main(Options(evaluation))
