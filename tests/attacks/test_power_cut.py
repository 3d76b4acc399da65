"""A power cut at any moment of a save leaves the old state or the new one, and never loses what was acknowledged.

Each save is recorded for real (tests/power_cut.py), and every state that a cut may leave is read with the project's own
readers. So that the check is known to be able to fail, each is repeated with syncs ignored, and must then find losses.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from forage.agent.episode import append_episodes, compress
from forage.files import clear_half_written, remove_folder, replacing_folder
from forage.policy.adapters import adapter_path, newest_adapter, publish_adapter, versions
from forage.policy.checkpoint import load_checkpoint, save_checkpoint
from forage.rollout.plans import Plan, Played
from forage.runs.stats import read_evaluations, read_stats, write_evaluations, write_stats
from tests.factories import EPISODE, STATS
from tests.power_cut import Recording

# What is saved, and how what is left of it is checked: save(folder, acknowledge), check(folder, acknowledged).


def weights_of(step):
    return torch.full((2, 3), float(step))


def model_of(step):
    model = nn.Linear(3, 2, bias=False)
    model.weight.data.copy_(weights_of(step))
    return model, torch.optim.AdamW(model.parameters())


def save_checkpoints(folder, acknowledge):
    for step in (1, 2, 2, 3):
        save_checkpoint(folder / "run" / "state", step, *model_of(step), {"step": step})
        acknowledge(step)


def check_checkpoints(folder, acknowledged):
    model, optimizer = model_of(0)
    found = load_checkpoint(folder / "run" / "state", model, optimizer)
    step, kept = found or (0, {"step": 0})
    assert step >= max(acknowledged, default=0), f"step {step} after {acknowledged}"
    assert kept == {"step": step}
    assert torch.equal(model.weight, weights_of(step))


class SmallPolicy:
    """As much of a PEFT model as publishing needs; its files are written by safetensors itself."""

    def __init__(self, version):
        self.version = version

    def save_pretrained(self, folder, **_):
        save_file({"lora": weights_of(self.version)}, Path(folder) / "adapter_model.safetensors")
        (Path(folder) / "adapter_config.json").write_text("{}")


def save_adapters(folder, acknowledge):
    for version in range(3):
        publish_adapter(SmallPolicy(version), folder / "run", version)
        acknowledge(version)
    remove_folder(adapter_path(folder / "run", 0))  # as pruning does


def check_adapters(folder, acknowledged):
    there = versions(folder / "run")
    assert set(acknowledged) - {0} <= set(there), f"{there} after {acknowledged}"
    for version in there:
        path = folder / "run" / "adapters" / f"v{version:06d}"
        assert torch.equal(load_file(path / "adapter_model.safetensors")["lora"], weights_of(version))
        assert json.loads((path / "adapter_config.json").read_text()) == {}
    if there:
        assert newest_adapter(folder / "run").name == f"v{there[-1]:06d}"


PLAN = Plan("000000", 0, ("a", "b", "c"), num_rollouts=2)


def group_of(question):
    return [replace(EPISODE, id=f"{question}/{n}", question_id=question) for n in range(2)]


def save_episodes(folder, acknowledge):
    path = folder / "run" / "episodes" / "000000" / "worker.jsonl"
    for question in PLAN.questions:
        append_episodes(path, group_of(question))
        acknowledge(question)
    compress(path)


def check_episodes(folder, acknowledged):
    groups = Played(folder / "run", PLAN).groups()
    assert set(acknowledged) <= groups.keys(), f"{list(groups)} after {acknowledged}"
    assert all(group == group_of(question) for question, group in groups.items())


def save_statistics(folder, acknowledge):
    for step in range(3):
        write_evaluations(folder / "run", dict.fromkeys(range(step + 1), STATS.evaluation))
        write_stats(folder / "run", replace(STATS, step=step))
        acknowledge(step)


def check_statistics(folder, acknowledged):
    steps = [stats.step for stats in read_stats(folder / "run")]
    assert set(acknowledged) <= set(steps)
    assert set(acknowledged) <= read_evaluations(folder / "run").keys()


def save_policies(folder, acknowledge):
    """One folder in the place of another, as with --overwrite."""
    for number in range(3):
        with replacing_folder(folder / "models" / "policy", overwrite=True) as partial:
            (partial / "inside").mkdir()
            for name in ("model.json", "inside/weights"):
                (partial / name).write_text(str(number))
        acknowledge(number)


def check_policies(folder, acknowledged):
    policy = folder / "models" / "policy"
    assert policy.is_dir() or not acknowledged, f"nothing after {acknowledged}"
    if policy.is_dir():
        written = {(policy / name).read_text() for name in ("model.json", "inside/weights")}
        assert len(written) == 1
        assert int(written.pop()) >= max(acknowledged, default=0)


SAVES = {
    "checkpoints": (save_checkpoints, check_checkpoints),
    "adapters": (save_adapters, check_adapters),
    "episodes": (save_episodes, check_episodes),
    "statistics": (save_statistics, check_statistics),
    "policies": (save_policies, check_policies),
}


def problems_of(name, tmp_path, **how):
    save, check = SAVES[name]
    folder = tmp_path / "disk"
    folder.mkdir()
    recording = Recording(folder, **how)
    with recording:
        save(folder, recording.acknowledge)
    return recording.problems(check, tmp_path / "after")


@pytest.mark.parametrize("name", SAVES)
def test_a_power_cut_at_any_moment_leaves_the_old_or_the_new(tmp_path, name):
    assert list(problems_of(name, tmp_path)) == []


@pytest.mark.parametrize("name", SAVES)
def test_without_syncs_the_same_check_finds_losses(tmp_path, name):
    assert any(problems_of(name, tmp_path, fsync=False))  # which ends with the first


def test_where_names_cant_be_exchanged_the_old_checkpoint_stands_aside(tmp_path, monkeypatch):
    """As on a network file system: clear_half_written, which a resumed run calls first, gives it its name again."""
    monkeypatch.setattr("forage.files.exchange", lambda one, other: False)

    def check(folder, acknowledged):
        clear_half_written(folder / "run" / "state")
        check_checkpoints(folder, acknowledged)

    monkeypatch.setitem(SAVES, "aside", (save_checkpoints, check))
    assert list(problems_of("aside", tmp_path)) == []
