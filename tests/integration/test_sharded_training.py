"""grpo_train.py sharded each way, on two processes and on one, comes to the figures of the plain learner."""

import subprocess
import sys

import pytest

from forage.runs.stats import read_stats
from tests import ROOT
from tests.sharded_runs import STEPS, check_same, make_inputs, script

pytestmark = pytest.mark.slow


def run(folder, name, *more, processes=1):
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run([*launch, *script(folder, name, *more)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
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
