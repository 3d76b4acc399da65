"""Pruned runs come to what whole ones come to; what evaluations, rollbacks and workers need stays."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from forage.grpo import training
from forage.grpo.resume import kept_versions, tidy
from forage.policy.adapters import adapter_path, versions, weights_digest
from forage.runs.stats import read_stats
from tests.options import with_options
from tests.tiny_training import stats_of, tiny_options, train


def options_of(tiny, run_dir, **more):
    few = {"batch_size": 2, "num_rollouts": 3, "max_turn_tokens": 8, "max_steps": 6, "eval_every": 4}
    few |= {"eval_questions": 1, "keep_adapters": 1, "rollback_steps": 1}
    return tiny_options(tiny, run_dir, **few | more)


def test_what_is_kept_by_hand(tiny, tmp_path):
    options = options_of(tiny, tmp_path, keep_adapters=7)
    assert kept_versions(range(21), options, {10}) == {0, 10, 14, 15, 16, 17, 18, 19, 20}
    few = with_options(options, keep_adapters=1)
    assert kept_versions(range(21), few, ()) == {0, 19, 20}
    assert kept_versions(range(21), with_options(few, rollback_steps=4), ()) == {0, 16, 17, 18, 19, 20}
    assert kept_versions(range(21), with_options(few, max_staleness=2), ()) == {0, 17, 18, 19, 20}
    assert kept_versions(range(21), with_options(options, keep_adapters=0), ()) == set(range(21))
    assert kept_versions([], options, ()) == set()


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """A run that keeps everything."""
    options = options_of(tiny, tmp_path_factory.mktemp("whole") / "run", keep_adapters=0)
    train(options)
    return options.run_dir


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("killed_in", ["save_checkpoint", "tidy"])
def test_a_pruned_and_killed_run_ends_as_a_whole_one(whole, tiny, tmp_path, monkeypatch, killed_in):
    """0, 4 and 6 were evaluated, 5 and 6 are the last two."""
    options = options_of(tiny, tmp_path / "run")
    if killed_in == "tidy":
        monkeypatch.setattr(training, "tidy", lambda options, step: stop() if step == 5 else tidy(options, step))
    else:
        real = training.Learner.save
        monkeypatch.setattr(training.Learner, "save", lambda self, *a: stop() if a[1] == 5 else real(self, *a))
    with pytest.raises(KeyboardInterrupt):
        train(options)
    monkeypatch.undo()
    train(options)
    assert versions(options.run_dir) == [0, 4, 5, 6]
    assert names(options.run_dir / "adapters") == ["v000000", "v000004", "v000005", "v000006"]
    assert stats_of(whole) == stats_of(options.run_dir)
    for version in versions(options.run_dir):
        digests = {weights_digest(adapter_path(run, version)) for run in (whole, options.run_dir)}
        assert len(digests) == 1
    assert not list((options.run_dir / "episodes").rglob("*.jsonl"))


def stop():
    raise KeyboardInterrupt


def test_a_rollback_goes_to_the_nearest_adapter_that_is_left(whole, tiny, tmp_path):
    """--rollback-steps was raised after older adapters had been removed."""
    shutil.copytree(whole, tmp_path / "run")
    options = options_of(tiny, tmp_path / "run", on_collapse="rollback", rollback_steps=1)
    tidy(options, 6)
    assert versions(options.run_dir) == [0, 4, 5, 6]
    learner = SimpleNamespace(loaded=[])
    learner.load_adapter = learner.loaded.append
    stats = read_stats(whole)[-1]
    run = SimpleNamespace(
        options=with_options(options, rollback_steps=3), step=6, guarded_from=0, rollbacks=0, history=[], digests={},
        lead=True,
    )  # fmt: skip
    training.guard(run, learner, replace(stats, notes=["loss is nan"]))
    assert learner.loaded == [adapter_path(options.run_dir, 4)]
