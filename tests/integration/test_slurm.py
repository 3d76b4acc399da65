"""cluster/slurm.sh on a real Slurm: nodes are lost, jobs are queued again, and each run comes to its end."""

import re
import shutil
import sys

import pytest

from forage.policy.adapters import adapter_path
from forage.runs.stats import read_stats
from tests import ROOT
from tests.little_slurm import LittleSlurm, check_slurm
from tests.tiny import make_base, make_data, make_policy
from tests.tiny_training import stats_of

pytestmark = [pytest.mark.slow, pytest.mark.slurm, pytest.mark.timeout(1200)]
STEPS = 4
SETTINGS = {
    "DEVICE": "cpu", "ENGINE": "local", "WARM_STEPS": "0", "MODE": "sparse", "MAX_TURNS": "2", "MAX_TURN_TOKENS": "12",
    "BATCH_SIZE": "3", "NUM_ROLLOUTS": "4", "LEARNING_RATE": "0.01", "MAX_STEPS": str(STEPS), "MAX_STALENESS": "0",
    "EVAL_EVERY": "2", "TRAIN_ARGS": "--token-budget 600 --on-collapse warn --min-entropy 0",
}  # fmt: skip
# The tiny model's words are noise, so it is rewarded for tokens: the change that the README shows to users.
REWARDS = """    return {
        "even": lambda episodes, questions: [sum(i % 2 == 0 for i in e.ids) / max(1, len(e.ids)) for e in episodes],
        "low": lambda episodes, questions: [sum(i < 208 for i in e.ids) / max(1, len(e.ids)) for e in episodes],
    }
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    check_slurm()
    slurm = LittleSlurm(tmp_path_factory.mktemp("slurm"), ["n1", "n2", "n3", "n4"])
    yield slurm
    slurm.close()


@pytest.fixture(scope="module")
def checkout(slurm):
    """A checkout with rewards of its own, data and policy, as nodes would see it on a network file system."""
    folder = slurm.folder / "checkout"
    folder.mkdir()
    for name in ("forage", "scripts", "cluster"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.py"), ROOT / ".env.example"):
        shutil.copy(path, folder)
    script = (folder / "grpo_rollout.py").read_text()
    edited, changes = re.subn(r"    return \{\n        .mrr.+?\n    \}\n", REWARDS, script, flags=re.DOTALL)
    assert changes == 1
    (folder / "grpo_rollout.py").write_text(edited)
    with (folder / "forage" / "grpo" / "reporting.py").open("a") as file:  # drawing takes ten times as long as a step
        file.write('\n\nCOMMAND = ("true",)\n')
    make_data(folder / "data")
    make_policy(folder / "models" / "policy", make_base(folder / "models" / "tiny"))
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    return folder


@pytest.fixture(scope="module")
def submit(slurm, checkout):
    plain = {"PY": sys.executable, "OMP_NUM_THREADS": "1"}

    def submit(run, *options, train_nodes=1, **more):
        settings = plain | {"RUN": run, "TRAIN_NODES": str(train_nodes)} | more
        return slurm.submit("cluster/slurm.sh", *options, cwd=checkout, env=settings)

    return submit


def wait_for_step(slurm, run_dir, step):
    slurm.wait_for((run_dir / f"training_stats_{step}.json").exists)


def wait_for_end(slurm, *jobs):
    for job in jobs:
        slurm.wait_for(lambda job=job: slurm.state(job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED"))
        assert slurm.state(job)["JobState"] == "COMPLETED", slurm.logs()


def lose(slurm, node):
    """A node's power fails; Slurm notices by itself, and the node comes back."""
    slurm.kill(node)
    slurm.wait_for(lambda: slurm.slurm("sinfo", "--noheader", "--nodes", node, "--format=%T").startswith("down"))
    slurm.come_back(node)


@pytest.fixture(scope="module")
def whole(slurm, checkout, submit):
    """An undisturbed run of one trainer and one worker."""
    wait_for_end(slurm, submit("whole", "--nodes=2"))
    return checkout / "runs" / "whole"


def assert_close(run, whole, figures=("policy_loss", "entropy", "grad_norm")):
    """The same episodes and, but for rounding, the same training."""
    ours, theirs = read_stats(run), read_stats(whole)
    assert [row.step for row in ours] == [row.step for row in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.rewards == other.rewards, mine.step
        for figure in figures:
            # AdamW's first step is the sign of the gradient, so a gradient near 0 may go either way.
            near = 1e-4 if mine.step == 0 else 0.05
            assert mine.training[figure] == pytest.approx(other.training[figure], rel=near, abs=1e-6), (
                mine.step, figure,
            )  # fmt: skip


def test_the_loss_of_a_workers_node_and_the_end_of_time_queue_the_job_again(slurm, checkout, submit, whole):
    run = checkout / "runs" / "lost"
    job = submit("lost", "--nodes=2", "--nodelist=n1,n2")
    wait_for_step(slurm, run, 0)
    slurm.slurm("scancel", "--batch", "--signal=USR1", job)  # as Slurm does five minutes before the end of --time
    wait_for_step(slurm, run, 2)
    assert slurm.state(job)["Restarts"] == "1"
    lose(slurm, "n2")
    wait_for_end(slurm, job)
    assert slurm.state(job)["Restarts"] == "2"
    assert "the end of --time is near" in (checkout / f"forage-{job}.out").read_text()
    assert_close(run, whole)


def test_a_lost_trainer_ends_as_an_undisturbed_one_while_workers_of_another_job_go_on(slurm, checkout, submit, whole):
    run = checkout / "runs" / "apart"
    trainer = submit("apart", "--nodes=1", "--nodelist=n1")
    worker = submit("apart", "--nodes=1", "--nodelist=n2", train_nodes=0)
    wait_for_step(slurm, run, 1)
    lose(slurm, "n1")
    wait_for_end(slurm, trainer, worker)
    assert [slurm.state(job)["Restarts"] for job in (trainer, worker)] == ["1", "0"]
    assert stats_of(run) == stats_of(whole)
    for version in range(STEPS + 1):
        ours, theirs = (adapter_path(folder, version) / "adapter_model.safetensors" for folder in (run, whole))
        assert ours.read_bytes() == theirs.read_bytes(), version


def test_two_nodes_train_together_and_one_of_them_is_lost(slurm, checkout, submit, whole):
    run = checkout / "runs" / "together"
    job = submit("together", "--nodes=3", train_nodes=2, SHARDING="zero3")
    wait_for_step(slurm, run, 1)
    # Another takes its place: had it come back at once, Slurm's late word to end the old job would end the new one.
    slurm.kill("n2")
    wait_for_end(slurm, job)
    slurm.come_back("n2")
    assert slurm.state(job)["Restarts"] == "1"
    assert "training by DeepSpeed" in (said := (checkout / "logs" / "together" / "train-n1.log").read_text())
    assert said.count("ZeRO-3, processes: 2") == 2
    assert_close(run, whole)
