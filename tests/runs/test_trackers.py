"""Trackers: flat names by hand, and each library for real where it is installed, a resumed run included."""

import importlib.util
import sys
import time

import pytest

from forage.runs.trackers import flatten, open_tracker
from tests.factories import STATS
from tests.refusals import refused


def test_flat_names_by_hand():
    assert flatten(STATS) == {
        "reward/overall": 0.625, "reward_std/overall": 0.125, "reward/mrr": 0.5, "reward_std/mrr": 0.5,
        "evaluation/mrr": 0.4, "evaluation_low/mrr": 0.3, "evaluation_high/mrr": 0.5,
        "loss/policy": -0.01, "training/kl": 0.002, "training/ratio_max": 1.5,
        "groups/total": 1, "groups/flat": 0, "groups/replaced": 2,
        "episodes/count": 2, "episodes/well_formed": 0.5, "episodes/searches": 1.5, "episodes/turns": 2,
        "episodes/sampled_tokens": 40, "episodes/tokens": 300,
        "stops/answer": 1, "stops/turns": 1, "faults/bad_json": 1,
        "seconds/rollout": 20.5, "seconds/step": 31, "memory_gib": 1.5,
    }  # fmt: skip


def test_a_missing_library_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    wanted = refused("pip install trackio")
    with wanted, open_tracker("trackio", tmp_path, {}):
        pass


def resumed_run(kind, folder):
    """Steps 3, 4, 5, then a second start that makes 5 again, and 6."""
    for steps, shift in (((3, 4, 5), 0), ((5, 6), 1)):
        with open_tracker(kind, folder, {"lr": 1e-4, "data": folder, "limits": {"turns": 4}}) as log:
            for step in steps:
                log(step, {"reward/mrr": step / 8 + shift, "loss/policy": -0.5})


@pytest.mark.slow
def test_wandb_without_a_key_stays_offline_and_loses_no_step(tmp_path, monkeypatch, capfd):
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setitem(sys.modules, "openai", sys)  # wandb sees it loaded, as beside a judge, and would advertise
    monkeypatch.delenv("WANDB_DISABLE_WEAVE", raising=False)
    run = tmp_path / "run"
    resumed_run("wandb", run)
    said = capfd.readouterr()
    line = f"wandb: no key, so the run stays offline; `wandb login`, then `wandb sync {run}/wandb/offline-run-*`\n"
    assert said.out + said.err == line * 2
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert {path.name for path in files} == {f"run-{(run / 'wandb' / 'run_id').read_text()}.wandb"}
    wanted = [b"0.375", b"0.625", b"1.625", b"1.75"]
    deadline = time.monotonic() + 60  # wandb's own process writes the files, on a loaded machine after we have finished
    while (found := [value for path in files for value in wanted if value in path.read_bytes()]) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_trackio_goes_on_with_the_same_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path)
    resumed_run("trackio", tmp_path / "my-run")
    logs = SQLiteStorage.get_logs("forage", "my-run")
    assert [(row["step"], row["reward/mrr"]) for row in logs] == [
        (3, 0.375),
        (4, 0.5),
        (5, 0.625),
        (5, 1.625),
        (6, 1.75),
    ]
    assert capsys.readouterr().out == "trackio: this run beside others: trackio show --project forage\n" * 2
