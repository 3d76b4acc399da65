"""The trainer: its figures by hand, whole runs on a tiny policy, and every way in which one goes on or stops."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

import forage.grpo.update
import grpo_rollout
from forage.agent.episode import Turn, read_episodes
from forage.data import splits
from forage.data.records import read_questions
from forage.grpo import reporting
from forage.grpo.options import GuardOptions, UpdateOptions
from forage.grpo.update import prepare
from forage.policy.adapters import adapter_path, list_contents, served_name, versions, weights_digest
from forage.rollout.plans import plan_of, write_plan
from forage.runs.stats import read_stats
from tests.factories import EPISODE
from tests.here import run_here
from tests.refusals import refused
from tests.tiny import rewards_of_tokens
from tests.tiny_training import adapter_bytes, stats_of, tiny_args, tiny_options, train

# Figures by hand


def played(question, sample, reward, adapter="run-v000003", **more):
    return replace(
        EPISODE, id=f"{question}/{sample}", question_id=question, adapter=adapter, reward=reward,
        rewards={"a": reward, "b": 1.0}, **more,
    )  # fmt: skip


def test_rewards_become_advantages_by_question():
    episodes = [played("q", 0, 1.0), played("q", 1, 0.0), played("r", 0, 0.5), played("r", 1, 0.5)]
    lessons = prepare(episodes, UpdateOptions(advantage="dr_grpo"))
    assert lessons.combined_N.tolist() == [1.0, 0.5, 0.75, 0.75]  # the mean of a and b
    assert lessons.advantages_N.tolist() == [0.25, -0.25, 0.0, 0.0]
    assert lessons.keep_N.tolist() == [1, 1, 1, 1]
    by_std = prepare(episodes, UpdateOptions(advantage="dr_grpo", combine="std"))  # b never varies: a alone counts
    assert by_std.advantages_N.tolist() == [0.5, -0.5, 0.0, 0.0]


def test_episodes_out_of_tokens_are_kept_masked_or_punished(monkeypatch):
    monkeypatch.setattr(forage.grpo.update, "OVERLONG_MARGIN", 4)
    episodes = [played("q", 0, 1.0), played("q", 1, 0.0, stop="turn_tokens")]  # both are of 10 tokens
    options = UpdateOptions(advantage="dr_grpo")
    assert prepare(episodes, options).keep_N.tolist() == [1, 1]
    assert prepare(episodes, replace(options, overlong="mask")).keep_N.tolist() == [1, 0]
    punished = prepare(episodes, replace(options, overlong="punish"), max_tokens=12)
    assert punished.combined_N.tolist() == [1.0 - 0.5, 0.5 - 0.5]
    more = {name: (*getattr(episodes[0], name), *[0] * 50) for name in ("ids", "mask", "logprobs")}  # found, not read
    episodes[0] = replace(episodes[0], **more)
    assert prepare(episodes, replace(options, overlong="punish"), max_tokens=12).combined_N.tolist() == [0.5, 0.0]


def test_flat_groups_that_were_replaced_are_left_out_whatever_their_lengths(monkeypatch):
    """Of r's equal rewards, the penalty alone would make advantages of 1 and -1 over s = 1 / sqrt 2."""
    monkeypatch.setattr(forage.grpo.update, "OVERLONG_MARGIN", 4)
    short = {"ids": (1, 2), "mask": (0, 1), "logprobs": (0.0, -0.1), "credits": (0.0, 1.0), "turns": (Turn(1, 2),)}
    episodes = [played("q", 0, 1.0, **short), played("q", 1, 0.0), played("r", 0, 0.5, **short), played("r", 1, 0.5)]
    options, half = UpdateOptions(overlong="punish"), 0.5**0.5
    kept, left_out = (prepare(episodes, options, max_tokens=12, replaces_flat=way) for way in (False, True))
    assert kept.advantages_N.tolist() == pytest.approx([half, -half, half, -half], abs=1e-3)
    assert left_out.advantages_N.tolist() == pytest.approx([half, -half, 0, 0], abs=1e-3)
    assert left_out.keep_N.tolist() == [1, 1, 0, 0]
    assert [any(credits) for credits in left_out.credits] == [True, False, False, False]
    batch = prepare(episodes[2:], options, max_tokens=12, replaces_flat=True)  # nothing was left to replace them by
    assert [batch.teaches(number) for number in range(2)] == [False, False]


@pytest.mark.parametrize("more", [{"learn_from": 2}, {"advantage": "best"}])
def test_what_is_picked_of_a_group_is_not_masked_then(more):
    """Masked: the lowest, which has the widest distance, and the best."""
    stops = ["turn_tokens", "answer", "answer", "tokens"]
    episodes = [played("q", n, n / 4, stop=stop) for n, stop in enumerate(stops)]
    batch = prepare(episodes, UpdateOptions(overlong="mask", **more))
    assert batch.keep_N.tolist() == [0, 1, 1, 0]
    assert [batch.teaches(number) for number in range(4)] == [False, "learn_from" in more, True, False]


def test_update_options_that_teach_nothing_or_mean_nothing():
    for wrong, word in (({"learn_from": 1}, "learn-from 1"), ({"word_cost": 0.1}, "without --credit words")):
        with refused(word):
            UpdateOptions(**wrong).check()


# Whole runs


@pytest.mark.usefixtures("no_plots")
def test_a_resumed_run_is_asked_for_nothing_again(tiny, tmp_path, monkeypatch):
    """What is left out is the run's; what is given and contradicts it is refused, all of it at once."""
    monkeypatch.setattr(grpo_rollout, "get_reward_functions", rewards_of_tokens)
    run_dir = tmp_path / "run"
    begun = run_here([sys.executable, "grpo_train.py", *tiny_args(tiny, run_dir, "--max-steps", "1")])
    assert begun.returncode == 0, begun.stderr
    assert "not given" not in begun.stdout
    again = [sys.executable, "grpo_train.py", "--run-dir", run_dir]
    resumed = run_here([*again, "--max-steps", "2", "--learning-rate", "0.02"])
    assert resumed.returncode == 0, resumed.stderr
    [taken] = [line for line in resumed.stdout.splitlines() if line.startswith("not given")]
    assert "--num-rollouts 4 --batch-size 3 --token-budget 600" in taken
    assert "--learning-rate" not in taken
    assert len(read_stats(run_dir)) == 2
    refused = run_here([*again, "--num-rollouts", "8", "--eval-every", "5", "--max-steps", "9"])
    assert "was begun with --num-rollouts 4, not 8; --eval-every 2, not 5: give that, or another" in refused.stderr


def test_a_run_learns_and_leaves_what_it_says(tiny, tmp_path, capsys):
    options = tiny_options(tiny, tmp_path / "run", max_steps=12, num_rollouts=8, learning_rate=0.02)
    train(options)
    lines = [line for line in capsys.readouterr().out.splitlines() if "run.html" not in line]
    assert sum(line.startswith("000001, adapter v000001: episodes 24 of 24; ") for line in lines) == 1
    assert [line for line in lines if line.startswith("Shown: ")]
    assert lines[-1].endswith(
        f"evaluate.py --data {options.rollout.data} --policy before={options.rollout.policy} after={options.run_dir} "
        "--temperature 0"
    )
    stats = read_stats(options.run_dir)
    assert [row.step for row in stats] == list(range(12))
    assert versions(options.run_dir) == [0, *range(2, 13)]  # the first, those evaluated, and the last ten
    first, last = (np.mean([np.mean(row.rewards["overall"]) for row in part]) for part in (stats[:3], stats[-3:]))
    assert last > first + 0.2  # by .5 with any of four seeds; at half the rate by .05 to .5
    taught = [row for row in stats if row.groups["flat"] < row.groups["total"]]
    assert len(taught) >= 6  # in the end all episodes are alike, and teach nothing
    for row in taught:
        # Sampler and trainer are the same weights in the same precision, so they must agree.
        assert row.training["mismatch_mean_abs"] < 1e-4
        assert row.training["ratio_mean"] == 1.0
        assert {"logprobs", "backward"} <= set(row.seconds)
    for row in stats:
        assert row.episodes["count"] == 24
        assert {"rollout", "generate", "search", "publish"} <= set(row.seconds)
        assert 0 < row.seconds["generate"] <= row.seconds["rollout"]
    assert [row.evaluation is not None for row in stats[:4]] == [True, False, True, False]
    assert sorted(map(int, json.loads((options.run_dir / "evaluations.json").read_text()))) == [0, 2, 4, 6, 8, 10, 12]
    # Every adapter sampled its own step's episodes.
    kept = [row.step for row in stats if adapter_path(options.run_dir, row.step).exists()]
    assert len(kept) > 6
    for step in kept:
        path = options.run_dir / "episodes" / f"{step:06d}" / "trainer.jsonl"
        digest = weights_digest(adapter_path(options.run_dir, step))
        assert {e.adapter for e in read_episodes(path)} == {served_name("run", step, digest)}


def test_a_question_that_is_trained_on_is_not_held_out(tiny, tmp_path, monkeypatch):
    """Even where whatever reads the questions mixes them up; files are compared when they are read."""
    questions = splits.read_splits(tiny / "data")["train"]
    monkeypatch.setattr(splits, "read_splits", lambda data: {"train": questions, "eval": questions})
    with refused("question q0 is trained on and held out; take it out of train.jsonl or eval.jsonl"):
        train(tiny_options(tiny, tmp_path / "run"))


def test_the_loss_is_of_the_temperature_that_was_sampled_at(tiny, tmp_path):
    train(tiny_options(tiny, tmp_path / "run", temperature=0.7, max_steps=1, eval_every=0))
    [stats] = read_stats(tmp_path / "run")
    assert 0 <= stats.training["mismatch_mean_abs"] < 1e-4


def test_a_finished_run_goes_on_when_steps_are_raised_and_ends_as_another_of_its_seed(tiny, tmp_path):
    short = tiny_options(tiny, tmp_path / "short" / "run", eval_every=0)
    train(replace(short, max_steps=2))
    train(replace(short, max_steps=4))
    whole = replace(short, run_dir=tmp_path / "whole" / "run", max_steps=4)
    train(whole)
    assert stats_of(short.run_dir) == stats_of(whole.run_dir)
    assert adapter_bytes(short.run_dir, 4) == adapter_bytes(whole.run_dir, 4)
    train(other := tiny_options(tiny, tmp_path / "other" / "run", eval_every=0, max_steps=1, seed=1))
    assert stats_of(other.run_dir) != stats_of(whole.run_dir)[:1]


def test_dropout_draws_alike_where_episodes_were_there_already(tiny, tmp_path):
    policy = tmp_path / "policy"
    shutil.copytree(tiny / "policy", policy)
    card = adapter_path(policy, 0) / "adapter_config.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"lora_dropout": 0.3}))
    list_contents(card.parent)
    whole, parts = (
        tiny_options(tiny, tmp_path / name / "run", policy=policy, max_steps=2, eval_every=0)
        for name in ("whole", "parts")
    )
    train(whole)
    train(replace(parts, max_steps=1))
    # As if it had been killed in the second step's update: its episodes are there, nothing is played again.
    shutil.copytree(whole.run_dir / "episodes" / "000001", parts.run_dir / "episodes" / "000001")
    write_plan(parts.run_dir, plan_of(parts.rollout, [q.id for q in read_questions(tiny / "data" / "train.jsonl")], 1))
    train(parts)
    assert stats_of(parts.run_dir) == stats_of(whole.run_dir)
    assert adapter_bytes(parts.run_dir, 2) == adapter_bytes(whole.run_dir, 2)
    assert read_stats(whole.run_dir)[1].training["mismatch_mean_abs"] > 1e-3  # it was on


# Guards


def test_a_collapse_stops_the_run_or_rolls_it_back(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(reporting, "MIN_ENTROPY", 100.0)  # no policy is that uncertain
    monkeypatch.setattr(reporting, "WINDOW", 2)
    alarmed = GuardOptions(on_collapse="stop")
    options = tiny_options(tiny, tmp_path / "run", eval_every=0, max_steps=4, guard=alarmed)
    with refused(r"stopped at step 1: entropy fell to .*The last adapter is .*v000001;"):
        train(options)
    rolled = replace(
        options, run_dir=tmp_path / "rolled" / "run", guard=replace(alarmed, on_collapse="rollback", rollback_steps=1)
    )
    train(rolled)
    notes = [row.notes for row in read_stats(rolled.run_dir)]
    assert [len(n) for n in notes] == [0, 1, 0, 1]  # after a rollback the window begins anew
    assert "went back to adapter v000000" in notes[1][0]
    assert adapter_bytes(rolled.run_dir, 2) == adapter_bytes(rolled.run_dir, 0)
    assert adapter_bytes(rolled.run_dir, 1) != adapter_bytes(rolled.run_dir, 0)


def test_a_loss_that_is_not_finite_changes_nothing_and_stops_the_run(tiny, tmp_path, monkeypatch):
    real = forage.grpo.update.policy_loss

    def broken(*arguments, **more):
        return real(*arguments, **more) * float("nan")

    monkeypatch.setattr(forage.grpo.update, "policy_loss", broken)
    options = tiny_options(tiny, tmp_path / "run", eval_every=0, guard=GuardOptions())
    with refused("stopped at step 0: grad_norm is nan"):
        train(options)
    assert versions(options.run_dir) == [0]
