"""The report by hand: scores of several evaluations in one table, and what each round cost."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from forage.agent.episode import write_episodes
from forage.data.records import Question
from forage.errors import UserError
from forage.evaluation.measures import COSTS
from forage.evaluation.outcomes import Outcome, OutcomeLog
from forage.evolution.options import EvolveOptions
from forage.evolution.plots import points_of, rounds_figure
from forage.evolution.report import Account, account, report, training_of
from forage.evolution.stages import Place, imitation_place
from forage.files import write_jsonl
from tests.factories import EPISODE

HELD_OUT = [Question(f"q{n}", f"What is {n}?", "That.", relevant_chunk_ids=("a",)) for n in range(4)]
SHORT = replace(EPISODE, id="q/1", ids=(1, 2, 3, 4), mask=(0, 0, 1, 1), logprobs=(0.0,) * 4, turns=())


def measured(place, scores):
    """What evaluate.py leaves of a policy whose systems have these MRRs on the questions; None where there is none."""
    systems = {name: dict.fromkeys(COSTS, 1.0) | {"answer_similarity": 0.5} for name in scores}
    rows = [
        {"id": question.id, "question_type": "",
         "systems": {f"{place.name}/{name}": {"mrr": scores[name][n], **systems[name]} for name in scores}}
        for n, question in enumerate(HELD_OUT)
    ]  # fmt: skip
    write_jsonl(place.measured / "per_question.jsonl", rows)
    listed = [{"name": f"{place.name}/{name}", "policy": place.name, "system": name, "adapter": "v000000"}
              for name in scores]  # fmt: skip
    (place.measured / "eval.json").write_text(json.dumps({"systems": listed}))
    (place.measured / "eval.png").touch()


def trained(place, episodes, steps):
    write_episodes(place.policy / "demonstrations.jsonl", episodes)
    write_jsonl(place.policy / "stats.jsonl", [{"step": step} for step in steps])


def played(place, system, tried):
    log = OutcomeLog(place.played, f"policy/{system}")
    log.append(Outcome(tried[0], tuple(tried)), 1.0, 1.0)


@pytest.fixture
def options(tmp_path):
    """One round and an imitation. EPISODE has 4 tokens of the policy's, SHORT has 2."""
    options = EvolveOptions(tmp_path / "data", Path("warm"), tmp_path / "out", rounds=1, batch_size=3, imitation=True)
    write_jsonl(options.data / "eval.jsonl", HELD_OUT)
    start, first, beside = (Place.of(options.output_dir, 0), Place.of(options.output_dir, 1), imitation_place(options))
    measured(start, {"single": [0.0, 0.0, 1.0, 1.0], "best_of_8": [0.0, 1.0, 1.0, 1.0]})
    measured(first, {"single": [1.0, 0.0, 1.0, 1.0], "learned_8": [1.0, 1.0, 1.0, None]})
    measured(beside, {"single": [0.0, 0.0, 0.0, 1.0]})
    played(first, "single", [EPISODE])
    played(first, "best_of_8", [EPISODE, SHORT])
    write_episodes(first.kept, [SHORT])
    trained(first, [EPISODE, SHORT], (0, 20, 40))
    trained(beside, [SHORT], (0, 20))
    return options


def test_what_a_round_cost(options):
    assert account(options, 1) == Account("round_1", "best_of_8", 1, 1, 4 + 2, 2, 40, 40 * 3 * 3)
    assert training_of(imitation_place(options), 3) == (1, 20, 20 * 3 * 2)


def test_a_first_sample_that_the_search_did_not_try_is_paid_for_too(options):
    place = Place.of(options.output_dir, 2)
    played(place, "single", [EPISODE])
    played(place, "learned_tree", [SHORT])
    write_episodes(place.kept, [SHORT])
    trained(place, [SHORT], (20,))
    assert account(options, 2).search_tokens == 2 + 4


def test_the_start_is_what_all_are_compared_with(options, capsys):
    report(options, 1)
    whole = json.loads((options.output_dir / "evolution.json").read_text())
    assert (whole["questions"], whole["reference"]) == (4, "round_0/single")
    rows = {row["name"]: row for row in whole["systems"]}
    assert list(rows) == ["round_0/single", "round_0/best_of_8", "round_1/single", "round_1/learned_8",
                          "imitation_1/single"]  # fmt: skip
    assert rows["round_1/single"]["metrics"]["mrr"]["mean"] == 0.75
    assert rows["round_1/single"]["over_reference"]["mrr"]["mean"] == 0.25
    assert rows["round_1/learned_8"]["metrics"]["mrr"]["mean"] == 1  # of the three questions that have one
    assert rows["imitation_1/single"]["over_reference"]["mrr"]["mean"] == -0.25
    assert [one["name"] for one in whole["rounds"]] == ["round_1", "imitation_1"]
    page = (options.output_dir / "table.md").read_text()
    assert "| round_1 | best_of_8 | 1 | 1 | 6 | 2 | 40 | 360 |" in page
    assert "| imitation_1 | teacher | 0 | 0 | 0 | 1 | 20 | 120 |" in page
    assert (options.output_dir / "evolution.png").stat().st_size > 10_000
    (beside,) = whole["over_imitation"]  # which played no learned_8
    assert (beside["name"], beside["over"]) == ("round_1/single", "imitation_1/single")
    assert beside["metrics"]["mrr"]["mean"] == 0.5
    said = capsys.readouterr().out
    for heading in ("Difference to round_0/single", "Difference to imitation_1/single"):
        assert heading in said
        assert f"## {heading}" in page


def test_policies_that_were_measured_on_other_questions_are_not_compared(options):
    rows = (Place.of(options.output_dir, 1).measured / "per_question.jsonl").read_text().splitlines(keepends=True)
    (Place.of(options.output_dir, 1).measured / "per_question.jsonl").write_text("".join(rows[1:]))
    with pytest.raises(UserError, match=r"round_1/measured was measured on other questions than .*round_0/measured"):
        report(options, 1)


def test_questions_that_are_gone_from_the_data_are_told(options):
    write_jsonl(options.data / "eval.jsonl", HELD_OUT[1:])
    with pytest.raises(UserError, match=r"round_0/measured was measured on other questions than .*eval.jsonl now"):
        report(options, 1)


def test_points_of_the_plot_by_hand():
    found = {"mean": 0.5, "low": 0.4, "high": 0.6}
    rows = [
        {"name": name, "policy": name.split("/")[0], "system": name.split("/")[1], "metrics": {"mrr": found}}
        for name in ("round_0/single", "round_1/single", "round_1/learned_8", "imitation_2/single")
    ]
    assert points_of(rows, "mrr") == {
        "single": [(0, 0.5, 0.4, 0.6), (1, 0.5, 0.4, 0.6)], "learned_8": [(1, 0.5, 0.4, 0.6)]
    }  # fmt: skip
    assert points_of(rows, "answer_similarity") == {}
    [axes] = rounds_figure(rows).axes
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"single", "learned_8", "imitation_2/single"}
    assert math.isclose(axes.lines[-1].get_ydata()[0], 0.5)
