"""grpo_train.py sharded each way, on two processes and on one, and on two machines, against the plain learner: the same
figures, the same adapter."""

import json
import subprocess
import sys
import time

import pytest

from forage.runs.stats import read_stats, same_run
from tests import ROOT
from tests.machines import Machines, check_machines
from tests.sharded_runs import STEPS, check_same, make_inputs, script
from tests.tiny_training import adapter_bytes

pytestmark = pytest.mark.slow


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
    make_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    return run(folder, "alone")


WAYS = [
    (2, "none", "none"), (2, "zero2", "none"), (2, "zero3", "all"), (2, "fsdp2", "none"), (1, "zero2", "optimizer"),
    (1, "zero3", "none"),
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


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    check_machines()
    machines = Machines(tmp_path_factory.mktemp("machines"), ["n1", "n2"])
    yield machines
    machines.close()


@pytest.mark.timeout(1200)
def test_over_two_machines_too_and_one_of_them_may_be_lost(machines, folder, alone):
    sharding, name = "fsdp2", "machines"
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
    assert adapter_bytes(lost, STEPS) == adapter_bytes(together, STEPS)
