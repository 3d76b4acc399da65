"""Comparing two runs: folders made by hand, and real tiny runs that differ in one option."""

import json
from dataclasses import replace

import pytest

from forage.errors import UserError
from forage.runs.compare import LEARNT, card, differences, figures, settings
from forage.runs.stats import write_evaluations, write_stats
from tests.factories import STATS
from tests.tiny_training import tiny_options, train

ANY, MEASURED, _, NOISE, NONE = (
    "may change anything (code.diff of both)", "changes what is measured", LEARNT,
    "noise, as another seed: draws and rounding", "no effect on figures: paths, logs, what the above holds by content",
)  # fmt: skip


def made(folder, seed=0, k=3, commit="c0de", steps=2, grown=0.0):
    """A run of as many steps, whose rewards at step n are n / 10 and what more is given."""
    folder.mkdir()
    run = {"data": {"eval": "beef"}, "options": {"rollout": {"seed": seed, "data": str(folder)}}}
    for name, parts in {"run": run, "agent": {"k": k}}.items():
        (folder / f"{name}.json").write_text(json.dumps(parts))
    (folder / "code.diff").write_text(f"{commit}\n")
    for step in range(steps):
        write_stats(folder, replace(STATS, step=step, rewards={"mrr": [step / 10 + grown]}, training={"entropy": 0.5}))
    write_evaluations(folder, {0: {"mrr": {"mean": 0.25 + grown, "low": 0.0, "high": 1.0}}})
    return folder


def test_settings_are_told_apart_by_what_they_can_do_to_figures():
    one = {
        "code.commit": 1, "rewards.mrr": 1, "data.train": 1, "data.eval": 1, "weights.mrr": 1, "agent.task": 1,
        "options.rollout.temperature": 1, "options.eval_every": 1, "options.update.loss.beta": 1, "adapter_weights": 1,
        "options.rollout.seed": 1, "options.seed": 1, "options.update.memory.token_budget": 1, "environment.torch": 1,
        "options.rollout.engine.engine": 1, "options.rollout.engine.urls": 1, "options.rollout.data": 1,
        "options.data": 1, "options.data_limit": 1, "adapter": 1, "same": 1,
    }  # fmt: skip
    other = {name: 2 for name in one if name != "agent.task"} | {"same": 1, "rewards.brevity": 2, "environment.new": 2}
    assert differences(one, other) == {
        ANY: ["code.commit"],
        MEASURED: ["rewards.mrr", "data.eval", "weights.mrr", "agent.task", "options.rollout.temperature",
                   "rewards.brevity"],
        LEARNT: ["data.train", "options.update.loss.beta", "adapter_weights", "options.data_limit"],
        NOISE: ["options.rollout.seed", "options.seed", "options.update.memory.token_budget", "environment.torch",
                "options.rollout.engine.engine"],
        NONE: ["options.eval_every", "options.rollout.engine.urls", "options.rollout.data", "options.data", "adapter"],
    }  # fmt: skip
    assert list(differences(one, other)) == [ANY, MEASURED, LEARNT, NOISE, NONE]
    assert differences(one, one) == {}


def test_figures_are_those_of_the_last_step_that_both_have(tmp_path):
    one, other = made(tmp_path / "a", steps=4), made(tmp_path / "b", seed=1, k=5, steps=3, grown=0.25)
    found = {name: rest for name, *rest in figures(one, other)}
    assert found["reward mrr"] == [2, 0.2, 0.45]
    assert found["held-out mrr"] == [0, 0.25, 0.5]
    assert found["entropy"] == [2, 0.5, 0.5]
    lines = list(card(one, other))
    assert lines[0] == f"{one} (a) and {other} (b) differ in 3 of 6 settings"
    assert [line.split() for line in lines if line.startswith("  ")][:3] == [
        ["agent.k", "3", "->", "5"], ["options.rollout.seed", "0", "->", "1"],
        ["options.rollout.data", str(one)[-36:], "->", str(other)[-36:]],
    ]  # fmt: skip
    assert f"  {'reward mrr':38} {2:5} {0.2:9.4f} {0.45:9.4f}   +0.2500" in lines


def test_code_differs_by_commit_and_by_what_was_not_committed(tmp_path):
    one, other = made(tmp_path / "a"), made(tmp_path / "b")
    assert settings(one)["code.commit"] == "c0de"
    assert differences(settings(one), settings(other)) == {NONE: ["options.rollout.data"]}
    (other / "code.diff").write_text("c0de\n+x = 1\n")
    assert differences(settings(one), settings(other))[ANY] == ["code.changes"]


def test_what_is_no_run_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"none has no run\.json, config\.json, .*; give the folder of a run"):
        list(card(tmp_path / "none", tmp_path))
    (tmp_path / "agent.json").write_text("[")
    with pytest.raises(UserError, match=r"agent\.json is damaged .*; put it back"):
        list(card(tmp_path, tmp_path))


@pytest.mark.usefixtures("no_plots")
def test_real_runs_that_differ_in_one_option(tiny, tmp_path):
    runs = [tmp_path / name for name in "abc"]
    for run, rate in zip(runs, (0.01, 0.02, 0.01), strict=True):
        train(tiny_options(tiny, run, max_steps=2, learning_rate=rate))
    same, other = ([*card(runs[0], run)] for run in (runs[2], runs[1]))
    assert differences(*map(settings, runs[:2])) == {
        LEARNT: ["options.update.optimizer.learning_rate"], NONE: ["options.run_dir"]
    }  # fmt: skip
    assert "differ in 1 of " in same[0]
    told = [line.split()[-1] for line in same if line.startswith(("  held-out", "  reward", "  likelihood_gain"))]
    assert told == ["+0.0000"] * len(told) != []  # the same seed gives the same figures
    assert other[-1].startswith("\nShown: ")
    manifest = json.loads((runs[1] / "run.json").read_text())
    manifest["data"]["eval"] = "other"
    (runs[1] / "run.json").write_text(json.dumps(manifest))
    assert list(card(*runs[:2]))[-1].startswith("\nNo verdict, as the rewards are not of one measure: data.eval differ")
