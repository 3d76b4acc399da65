"""Run folders that somebody tidied up, mixed up or damaged: each run resumes exactly, and what is not its own stands
aside; or it ends with one line.

The run was killed in its third step, after the update and before the checkpoint: everything a run can leave is there.
Another run of the same name, from another policy and with another seed, is what gets mixed in. Each
run that goes on must come to the result of an undisturbed one.
"""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from forage.grpo.learner import Learner
from forage.grpo.options import TrainOptions
from forage.policy.adapters import adapter_path, list_contents
from forage.rollout.plans import plan_path, read_plan, write_plan
from tests.refusals import refused
from tests.tiny_training import adapter_bytes, stats_of, tiny_options, train

pytestmark = pytest.mark.slow
STEPS = 4


class Killed(BaseException):
    """In the place of SIGKILL, which tests/attacks/test_kills.py sends."""


@dataclass(frozen=True)
class Runs:
    options: TrainOptions
    killed: Path
    """As the killed run left its folder."""
    other: Path
    """The other run's folder, finished."""
    whole: Path
    """An undisturbed run's."""

    @property
    def run_dir(self):
        return self.options.run_dir


def other_policy(policy, folder):
    shutil.copytree(policy, folder)
    path = adapter_path(folder, 0) / "adapter_model.safetensors"
    weights = load_file(path)
    generator = torch.Generator().manual_seed(1)
    save_file({n: w + 0.01 * torch.randn(w.shape, generator=generator) for n, w in weights.items()}, path)
    list_contents(path.parent)
    return folder


@pytest.fixture(scope="module")
def before(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("folders")
    options = tiny_options(tiny, folder / "ours" / "run", max_steps=STEPS)
    whole, other = folder / "whole" / "run", folder / "other" / "run"
    train(replace(options, run_dir=whole))
    train(tiny_options(tiny, other, max_steps=STEPS, seed=1, policy=other_policy(tiny / "policy", folder / "policy")))
    real = Learner.save

    def save(self, state, step, extra):
        if step == 3:
            raise Killed
        real(self, state, step, extra)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "save", save)
        with pytest.raises(Killed):
            train(options)
    shutil.copytree(options.run_dir, folder / "killed")
    return Runs(options, folder / "killed", other, whole)


@pytest.fixture
def runs(before):
    """The killed run's folder, in its place."""
    shutil.rmtree(before.run_dir, ignore_errors=True)
    shutil.copytree(before.killed, before.run_dir)
    return before


def assert_undisturbed(runs, run_dir=None):
    run_dir = run_dir or runs.run_dir
    assert stats_of(run_dir) == stats_of(runs.whole)
    for version in range(STEPS + 1):
        if adapter_path(run_dir, version).exists():
            assert adapter_bytes(run_dir, version) == adapter_bytes(runs.whole, version)
    assert adapter_path(run_dir, STEPS).exists()
    assert (run_dir / "evaluations.json").read_text() == (runs.whole / "evaluations.json").read_text()


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def do(harm, runs):
    """Commands in a run folder: remove, cut (to half a file), move, copy; take is from the other run."""
    for command in harm.split("; "):
        verb, *names = command.split()
        paths = [runs.run_dir / name for name in names]
        if verb == "take":
            if paths[0].exists():
                remove(paths[0])
            (shutil.copytree if (runs.other / names[0]).is_dir() else shutil.copy)(runs.other / names[0], paths[0])
        elif verb == "cut":
            paths[0].write_bytes(paths[0].read_bytes()[: paths[0].stat().st_size // 2])
        else:
            {"remove": remove, "move": shutil.move, "copy": shutil.copytree}[verb](*paths)


def plan_with(runs, **changes):
    """The plan of the step at which the run was killed, changed."""
    write_plan(runs.run_dir, replace(read_plan(plan_path(runs.run_dir, "000002")), **changes))


# What is missing or half-written


@pytest.mark.parametrize("harm", [
    "remove adapters/v000000; remove adapters/v000001; remove evaluations.json; remove agent.json; remove model.json",
    "remove adapters/v000002; remove training_stats_2.json; remove plans; remove episodes/000002",
    "remove episodes",
    "cut episodes/000002/trainer.jsonl; take training_stats_2.json; copy adapters/v000002 adapters/.v000003.abc; "
    "copy state/000002 state/.000003.abc",
])  # fmt: skip
def test_what_is_missing_is_made_again(runs, harm):
    plan_with(runs, name="000001", version=1)  # one that was used up and not removed
    do(harm, runs)
    train(runs.options)
    assert_undisturbed(runs)
    assert list((runs.run_dir / "plans").iterdir()) == []
    assert not (runs.run_dir / "stale").exists()


# What does not follow from the checkpoint stands aside, whole, and the run comes to the same end

ASIDE = [
    ("remove state", {}, "adapters/v000001"),
    ("remove state; remove adapters; remove training_stats_0.json; remove training_stats_1.json; "
     "remove training_stats_2.json", {}, "evaluations.json"),
    ("take training_stats_3.json", {}, "training_stats_3.json"),
    ("take adapters/v000003", {}, "adapters/v000003"),
    ("cut adapters/v000002/adapter_model.safetensors", {}, "adapters/v000002"),
    ("take adapters/v000001", {}, "adapters/v000001"),
    ("take episodes/000002", {}, "episodes/000002"),
    ("take episodes/000003", {"name": "000003", "version": 3, "seed": 1_000_006, "questions": ("q1", "q2", "q3")},
     "episodes/000003"),
    ("", {"temperature": 0.5}, "plans/000002.json"),
]  # fmt: skip


@pytest.mark.parametrize(("harm", "plan", "aside"), ASIDE)
def test_what_does_not_follow_from_the_checkpoint_stands_aside(runs, capsys, harm, plan, aside):
    if harm:
        do(harm, runs)
    if plan:
        plan_with(runs, **plan)
    before = contents(runs.run_dir / aside)
    train(runs.options)
    assert_undisturbed(runs)
    [moved] = (runs.run_dir / "stale").glob(f"*/{aside}")
    assert contents(moved) == before
    assert aside in capsys.readouterr().out


def test_evaluations_of_another_run_are_not_taken_for_this_ones(runs):
    theirs = json.loads((runs.other / "evaluations.json").read_text())
    path = runs.run_dir / "evaluations.json"
    path.write_text(json.dumps({version: row for version, row in theirs.items() if int(version) <= 2}))
    train(runs.options)
    assert_undisturbed(runs)


# What is refused, as going on would lose or lie

REFUSED = [
    ("take state", r"state is of a run with --seed 1, not 0; give another --run-dir, or move it away to start over"),
    ("move state/000002 state/000001", r"state/000001 holds the checkpoint of step 2; give it its name back"),
    ("cut state/000002/model.safetensors", r"model.safetensors is not what was saved; put it back, or start over"),
    ("remove state/000002/optimizer.safetensors", r"optimizer.safetensors is not what was saved; put it back"),
    ("remove run.json", r"holds a run but no run.json; put that back, or give another --run-dir"),
    ("cut run.json", r"run.json is damaged .*; put it back, or give another --run-dir"),
    ("cut evaluations.json", r"evaluations.json is damaged .*; delete it"),
]  # fmt: skip


@pytest.mark.parametrize(("harm", "says"), REFUSED)
def test_one_line_and_nothing_is_changed(runs, harm, says):
    do(harm, runs)
    there = contents(runs.run_dir)
    with refused(says):
        train(runs.options)
    after = contents(runs.run_dir)
    assert {name: after.get(name) for name in there} == there


def test_a_state_that_was_moved_away_starts_the_run_over(runs):
    do("cut state/000002/kept.json; move state elsewhere", runs)
    train(runs.options)
    assert_undisturbed(runs)


def contents(path):
    """A file's bytes, or those of all files in a folder by name, but for what each start writes."""
    if path.is_file():
        return path.read_bytes()
    kept = [file for file in path.rglob("*") if file.is_file() and file.name not in ("finished", "run.json")]
    return {str(file.relative_to(path)): file.read_bytes() for file in kept}
