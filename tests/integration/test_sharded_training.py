"""grpo_train.py sharded each way, on two processes and on one, and on two machines, against the plain learner: the same
figures, the same adapter."""

import json
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from forage.agent.episode import append_episodes
from forage.data.records import read_questions
from forage.policy.adapters import adapter_path
from forage.runs.stats import read_stats, same_run
from tests import ROOT
from tests.machines import Machines, check_machines
from tests.tiny import make_tiny, teach
from tests.tiny_training import tiny_args

pytestmark = pytest.mark.slow
FIGURES = ("policy_loss", "entropy", "grad_norm", "tokens", "mismatch_mean_abs", "ratio_mean", "demonstration_loss")
STEPS = 2


def script(folder, name, *more):
    return ["-m", "tests.tiny_training", "train", *tiny_args(
        folder, folder / name / "run", "--max-steps", str(STEPS), "--token-budget", "300",
        "--demonstrations", str(folder / "shown.jsonl"), *more,
    )]  # fmt: skip


def run(folder, name, *more, processes=1):
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run([*launch, *script(folder, name, *more)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / name / "run"


def start_on_machines(machines, folder, name, *more, dying=()):
    """A process on each, which meet over their network."""
    meet = ["--rdzv-backend", "static", "--rdzv-endpoint", f"{machines.addresses[machines.names[0]]}:29500"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", *meet, "--nproc-per-node", "1"]
    where = {"cwd": ROOT, "env": {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}}
    return [
        machines.start(
            machine, *launch, "--node-rank", rank, *dying, *script(folder, name, *more),
            log=folder / f"{name}-{machine}.log", **where,
        )
        for rank, machine in enumerate(machines.names)
    ]  # fmt: skip


def run_on_machines(machines, folder, name, *more):
    for process, machine in zip(start_on_machines(machines, folder, name, *more), machines.names, strict=True):
        assert process.wait() == 0, (folder / f"{name}-{machine}.log").read_text()[-3000:]
    return folder / name / "run"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    make_tiny(folder)
    questions = read_questions(folder / "data" / "train.jsonl")[:4]
    append_episodes(folder / "shown.jsonl", teach(folder, questions))
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    return run(folder, "alone")


WAYS = [
    (2, "none", "none"), (2, "zero2", "none"), (2, "zero3", "none"), (2, "fsdp2", "none"), (2, "zero3", "all"),
    (1, "zero2", "optimizer"), (1, "zero3", "none"), (1, "zero3", "all"), (1, "fsdp2", "none"),
]  # fmt: skip


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("processes", "sharding", "offload"), WAYS)
def test_sharded_it_does_what_the_plain_learner_does(folder, alone, processes, sharding, offload):
    name = f"{sharding}-{offload}-{processes}"
    together = run(folder, name, "--sharding", sharding, "--offload", offload, processes=processes)
    check_same(alone, together)
    # And the run goes on with the plain learner from what was left.
    assert (together / "state" / f"{STEPS:06d}" / "model.safetensors").exists()
    again = run(folder, name, "--max-steps", str(STEPS + 1))
    assert [row.step for row in read_stats(again)] == list(range(STEPS + 1))


def check_same(alone, together):
    one, two = read_stats(alone), read_stats(together)
    assert len(one) == len(two) == STEPS
    assert one[0].rewards == two[0].rewards  # the first step's episodes are by the same adapter
    for figure in FIGURES:
        assert two[0].training[figure] == pytest.approx(one[0].training[figure], rel=1e-4, abs=1e-6), figure
    ours, theirs = (load_file(adapter_path(path, 1) / "adapter_model.safetensors") for path in (together, alone))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        # AdamW's first step is the sign of the gradient, so a gradient near 0 may go either way.
        assert (ours[name] - weight).abs().mean() < 1e-4, name
        assert torch.isfinite(ours[name]).all()
    assert one[1].training["grad_norm"] == pytest.approx(two[1].training["grad_norm"], rel=0.05)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    check_machines()
    machines = Machines(tmp_path_factory.mktemp("machines"), ["n1", "n2"])
    yield machines
    machines.close()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("sharding", ["zero3", "fsdp2"])
def test_over_two_machines_too_and_one_of_them_may_be_lost(machines, folder, alone, sharding):
    name = f"machines-{sharding}"
    together = run_on_machines(machines, folder, name, "--sharding", sharding)
    check_same(alone, together)
    assert "processes: 2" in (folder / f"{name}-n1.log").read_text()

    lost = folder / f"{name}-lost" / "run"
    stop = ["-m", "tests.dying", json.dumps([["/episodes/000001", 1, "stop"]])]  # in the second and last step
    processes = start_on_machines(machines, folder, lost.parent.name, "--sharding", sharding, dying=stop)
    while not (lost / "state" / "000001" / "model.safetensors").exists():
        assert processes[0].poll() is None, (folder / f"{lost.parent.name}-n1.log").read_text()[-3000:]
        time.sleep(0.1)
    machines.kill("n2")  # the other waits for it in vain, so it is stopped, as a scheduler does
    machines.kill("n1")
    for process in processes:
        process.wait()
    for machine in machines.names:
        machines.boot(machine)
    run_on_machines(machines, folder, lost.parent.name, "--sharding", sharding)
    assert "resuming from step 1" in (folder / f"{lost.parent.name}-n1.log").read_text()
    assert same_run(read_stats(lost), read_stats(together))
    ours, theirs = (adapter_path(path, STEPS) / "adapter_model.safetensors" for path in (lost, together))
    assert ours.read_bytes() == theirs.read_bytes()
