"""grpo_train.py sharded over two containers, which share a folder and a network and nothing else: the figures of one
process, and the same bytes when a container was lost."""

import json
import os
import time

import pytest

from forage.runs.stats import read_stats, same_run
from tests import ROOT
from tests.containers import docker, lend_wheels
from tests.sharded_runs import STEPS, check_same, make_inputs, script
from tests.tiny_training import adapter_bytes

pytestmark = [pytest.mark.compose, pytest.mark.timeout(3600)]
IMAGE = "grpo:cpu"  # as docker-compose.cpu.yml calls it
NAMES = ("grpo-test-n1", "grpo-test-n2")
NO_SETTINGS = {"VLLM_API_KEY": "x", "ENV_FILE": "/nonexistent"}


@pytest.fixture(scope="module")
def network(engine):
    lend_wheels()
    docker("compose", "-f", "docker-compose.yml", "-f", "docker-compose.cpu.yml", "build", "prepare", env=NO_SETTINGS)
    name = "grpo-test-nodes"
    docker("network", "create", name)
    yield name
    docker("rm", "--force", *NAMES, check=False)
    docker("network", "rm", name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("containers")
    make_inputs(folder)
    return folder


def start(network, name, folder, *arguments):
    """Python with these arguments in a container of its own, by whose name others reach it."""
    docker("rm", "--force", name, check=False)
    docker(
        "run", "--detach", "--name", name, "--network", network, "--user", f"{os.getuid()}:{os.getgid()}",
        "--env", "OMP_NUM_THREADS=1", "--env", "HOME=/tmp", "--volume", f"{ROOT}:/checkout:ro",
        "--workdir", "/checkout", "--volume", f"{folder}:{folder}", IMAGE, "python", *arguments,
    )  # fmt: skip


def start_both(network, folder, name, *more, dying=()):
    for rank, container in enumerate(NAMES):
        meet = ["--rdzv-backend", "static", "--rdzv-endpoint", f"{NAMES[0]}:29500", "--node-rank", str(rank)]
        launch = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meet, *dying]
        start(network, container, folder, *launch, *script(folder, name, *more))


def finish(*names):
    """Wait for them; what the first one said."""
    for name in names:
        assert docker("wait", name).stdout.strip() == "0", logs(name)
    return logs(names[0])


def logs(name):
    done = docker("logs", name)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def alone(network, folder):
    start("none", NAMES[0], folder, *script(folder, "alone"))
    finish(NAMES[0])
    return folder / "alone" / "run"


@pytest.mark.parametrize("sharding", ["zero3", "fsdp2"])
def test_two_containers_train_as_one_process_and_one_may_be_lost(network, folder, alone, sharding):
    start_both(network, folder, sharding, "--sharding", sharding)
    said = finish(*NAMES)
    assert "processes: 2" in said
    together = folder / sharding / "run"
    check_same(alone, together)

    lost = folder / f"{sharding}-lost" / "run"
    stop = ["-m", "tests.dying", json.dumps([["/episodes/000001", 1, "stop"]])]  # in the second and last step
    start_both(network, folder, lost.parent.name, "--sharding", sharding, dying=stop)
    deadline = time.monotonic() + 600
    while not (lost / "state" / "000001" / "model.safetensors").exists():
        assert time.monotonic() < deadline, logs(NAMES[0])
        time.sleep(0.2)
    for name in reversed(NAMES):  # the one that is left waits in vain, so it is stopped too
        docker("kill", name)
    start_both(network, folder, lost.parent.name, "--sharding", sharding)
    assert "resuming from step 1" in finish(*NAMES)
    assert same_run(read_stats(lost), read_stats(together))
    assert adapter_bytes(lost, STEPS) == adapter_bytes(together, STEPS)
