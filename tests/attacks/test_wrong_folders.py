"""Run folders that somebody tidied up, mixed up or damaged: each run resumes exactly or ends with one line.

The run was killed in its third step, after the update and before the checkpoint: everything a run can leave is there.
Another run of the same name, from another policy and with another seed, is what gets mixed in. Where the line gives a
way out, the way is taken and must lead to the result of an undisturbed run.
"""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from forage.errors import UserError
from forage.grpo.learner import Learner
from forage.grpo.options import TrainOptions
from forage.policy.adapters import adapter_path
from forage.rollout.plans import plan_path, read_plan, write_plan
from tests.tiny_training import adapter_bytes, stats_of, tiny_options, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_plots")]
STEPS = 4


class Killed(BaseException):
    """In the place of SIGKILL, which tests/integration/test_resume.py sends."""


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


def copy(source, target):
    if target.exists():
        remove(target)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


def cut(path):
    """Half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


# What goes wrong and still comes to the same end, bit for bit


def nothing(run_dir, other): ...


def no_adapter_of_now(run_dir, other):
    remove(adapter_path(run_dir, 2))


def no_old_adapters(run_dir, other):
    for version in (0, 1):
        remove(adapter_path(run_dir, version))


def no_plans(run_dir, other):
    remove(run_dir / "plans")
    remove(run_dir / "episodes" / "000002")


def no_episodes(run_dir, other):
    remove(run_dir / "episodes")


def no_evaluations(run_dir, other):
    remove(run_dir / "evaluations.json")


def half_of_the_episodes(run_dir, other):
    cut(run_dir / "episodes" / "000002" / "trainer.jsonl")


def no_statistics_of_now(run_dir, other):
    remove(run_dir / "training_stats_2.json")


def statistics_of_now_from_another_run(run_dir, other):
    copy(other / "training_stats_2.json", run_dir / "training_stats_2.json")


def a_used_up_plan_is_left(run_dir, other):
    plan = read_plan(plan_path(run_dir, "000002"))
    write_plan(run_dir, replace(plan, name="000001", version=1))


def half_published(run_dir, other):
    shutil.copytree(adapter_path(run_dir, 2), run_dir / "adapters" / ".v000003.abc")


def half_a_checkpoint(run_dir, other):
    shutil.copytree(run_dir / "state" / "000002", run_dir / "state" / ".000003.abc")


def no_agent_or_model_card(run_dir, other):
    remove(run_dir / "agent.json")
    remove(run_dir / "model.json")


@pytest.mark.parametrize("harm", [
    nothing, no_adapter_of_now, no_old_adapters, no_plans, no_episodes, no_evaluations, half_of_the_episodes,
    no_statistics_of_now, statistics_of_now_from_another_run, a_used_up_plan_is_left, half_published, half_a_checkpoint,
    no_agent_or_model_card,
])  # fmt: skip
def test_the_run_comes_to_the_same_end(runs, harm):
    harm(runs.run_dir, runs.other)
    train(runs.options)
    assert_undisturbed(runs)
    assert list((runs.run_dir / "plans").iterdir()) == []


# What is refused, and the way out that the line gives


def state_removed(run_dir, other):
    remove(run_dir / "state")


def newest_checkpoint_removed(run_dir, other):
    remove(run_dir / "state" / "000002")


def checkpoint_of_an_earlier_step(run_dir, other):
    (run_dir / "state" / "000002").rename(run_dir / "state" / "000001")


def state_and_adapters_removed(run_dir, other):
    remove(run_dir / "state")
    remove(run_dir / "adapters")


def only_evaluations_left(run_dir, other):
    for name in ("state", "adapters", "episodes", "plans", *(f"training_stats_{n}.json" for n in range(3))):
        remove(run_dir / name)


def only_statistics_left(run_dir, other):
    for name in ("state", "adapters", "episodes", "plans", "evaluations.json"):
        remove(run_dir / name)


def statistics_of_a_later_step(run_dir, other):
    copy(other / "training_stats_3.json", run_dir / "training_stats_3.json")


def evaluations_of_a_later_version(run_dir, other):
    copy(other / "evaluations.json", run_dir / "evaluations.json")


def state_of_another_run(run_dir, other):
    copy(other / "state", run_dir / "state")


def a_later_adapter_of_another_run(run_dir, other):
    copy(adapter_path(other, 3), adapter_path(run_dir, 3))


def half_a_weights_file_in_the_checkpoint(run_dir, other):
    cut(run_dir / "state" / "000002" / "model.safetensors")


def half_a_record_in_the_checkpoint(run_dir, other):
    cut(run_dir / "state" / "000002" / "kept.json")


def no_optimizer_in_the_checkpoint(run_dir, other):
    remove(run_dir / "state" / "000002" / "optimizer.safetensors")


def config_removed(run_dir, other):
    remove(run_dir / "config.json")


def half_a_config(run_dir, other):
    cut(run_dir / "config.json")


STARTED_OVER = [
    (state_removed, r"v000002 is of a run that went further, but there is no checkpoint in state/"),
    (newest_checkpoint_removed, r"v000002 is of a run that went further, but there is no checkpoint in state/"),
    (checkpoint_of_an_earlier_step, r"v000002 is of a run that went further, but its checkpoint .* is of step 1"),
    (state_and_adapters_removed, r"training_stats_2.json is of a run that went further"),
    (only_evaluations_left, r"evaluations.json is of a run that went further"),
    (only_statistics_left, r"training_stats_2.json is of a run that went further"),
    (statistics_of_a_later_step, r"training_stats_3.json is of a run that went further"),
    (evaluations_of_a_later_version, r"evaluations.json is of a run that went further"),
    (state_of_another_run, r"state is of a run with --seed 1, not 0; give that"),
    (a_later_adapter_of_another_run, r"v000003 is of a run that went further"),
    (half_a_weights_file_in_the_checkpoint, r"state is damaged"),
    (half_a_record_in_the_checkpoint, r"state is damaged"),
    (no_optimizer_in_the_checkpoint, r"state is damaged"),
    (config_removed, r"holds a run but no config.json"),
]


@pytest.mark.parametrize(("harm", "says"), STARTED_OVER)
def test_one_line_that_says_how_to_start_over(runs, harm, says):
    harm(runs.run_dir, runs.other)
    refused(runs, says + r".*give another --run-dir, or remove all of \S+run to start over$")


def test_half_a_config_is_one_line(runs):
    half_a_config(runs.run_dir, runs.other)
    refused(runs, r"config.json is broken .*; put it back, or give another --run-dir$")


def test_both_ways_to_start_over_work(runs, tmp_path):
    state_removed(runs.run_dir, runs.other)
    train(replace(runs.options, run_dir=tmp_path / "run"))
    assert_undisturbed(runs, tmp_path / "run")
    shutil.rmtree(runs.run_dir)
    train(runs.options)
    assert_undisturbed(runs)


def adapter_of_now_from_another_run(run_dir, other):
    copy(adapter_path(other, 2), adapter_path(run_dir, 2))


def half_an_adapter(run_dir, other):
    cut(adapter_path(run_dir, 2) / "adapter_model.safetensors")


def an_adapter_without_weights(run_dir, other):
    remove(adapter_path(run_dir, 2) / "adapter_model.safetensors")


def older_adapter_of_another_run(run_dir, other):
    copy(adapter_path(other, 1), adapter_path(run_dir, 1))


def episodes_of_another_run(run_dir, other):
    copy(other / "episodes" / "000002", run_dir / "episodes" / "000002")


def episodes_of_a_step_to_come(run_dir, other):
    copy(other / "episodes" / "000003", run_dir / "episodes" / "000003")


def episodes_of_a_step_to_come_and_its_plan(run_dir, other):
    episodes_of_a_step_to_come(run_dir, other)
    plan = read_plan(plan_path(run_dir, "000002"))
    write_plan(run_dir, replace(plan, name="000003", version=3, seed=1_000_006, questions=("q1", "q2", "q3")))


def evaluation_episodes_of_another_run(run_dir, other):
    copy(other / "episodes" / "000002-eval", run_dir / "episodes" / "000002-eval")


def plan_of_another_temperature(run_dir, other):
    write_plan(run_dir, replace(read_plan(plan_path(run_dir, "000002")), temperature=0.5))


def plan_of_another_seed(run_dir, other):
    write_plan(run_dir, replace(read_plan(plan_path(run_dir, "000002")), seed=5))


def evaluations_of_another_run(run_dir, other):
    theirs = json.loads((other / "evaluations.json").read_text())
    (run_dir / "evaluations.json").write_text(json.dumps({n: row for n, row in theirs.items() if int(n) <= 2}))


def half_of_the_evaluations(run_dir, other):
    cut(run_dir / "evaluations.json")


MENDED = [
    (adapter_of_now_from_another_run, r"v000002 has other weights .*; move it out", ["adapters/v000002"]),
    (half_an_adapter, r"v000002 has other weights .*; move it out", ["adapters/v000002"]),
    (an_adapter_without_weights, r"v000002 has other weights .*; move it out", ["adapters/v000002"]),
    (older_adapter_of_another_run, r"v000001 has other weights .*move it away", ["adapters/v000001"]),
    (episodes_of_another_run, r"holds episodes of run-v000002-\w+.*; move those files out", ["episodes/000002"]),
    (episodes_of_a_step_to_come, r"000003 holds episodes that no plan .*; move it out", ["episodes/000003"]),
    (episodes_of_a_step_to_come_and_its_plan, r"000003.json has other questions .*; move it and episodes/000003 out",
     ["plans/000003.json", "episodes/000003"]),
    (evaluation_episodes_of_another_run, r"holds episodes of run-v000002-\w+.*; move those files out",
     ["episodes/000002-eval"]),
    (plan_of_another_temperature, r"000002.json has other temperature .*; move it and episodes/000002 out",
     ["plans/000002.json", "episodes/000002"]),
    (plan_of_another_seed, r"000002.json has other seed .*; move it and episodes/000002 out",
     ["plans/000002.json", "episodes/000002"]),
    (evaluations_of_another_run, r"evaluations.json and .*training_stats_0.json differ.*; delete evaluations.json",
     ["evaluations.json"]),
    (half_of_the_evaluations, r"evaluations.json is broken .*; delete it", ["evaluations.json"]),
]  # fmt: skip


@pytest.mark.parametrize(("harm", "says", "moved"), MENDED)
def test_one_line_and_what_it_says_mends_the_run(runs, harm, says, moved):
    harm(runs.run_dir, runs.other)
    refused(runs, says)
    for name in moved:
        remove(runs.run_dir / name)
    train(runs.options)
    assert_undisturbed(runs)


def refused(runs, says):
    """One line, said without a change to anything that the user might want to keep."""
    there = contents(runs.run_dir)
    with pytest.raises(UserError, match=says) as error:
        train(runs.options)
    assert "\n" not in str(error.value)
    after = contents(runs.run_dir)
    assert {name: after.get(name) for name in there} == there


def contents(run_dir):
    kept = [path for path in run_dir.rglob("*") if path.is_file() and path.name not in ("finished", "config.json")]
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in kept}
