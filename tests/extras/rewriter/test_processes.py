"""Processes that share an update of TRL's."""

import json
import os
import subprocess
import sys

import pytest

from forage.errors import UserError
from forage.extras.rewriter.options import Options, PPOOptions
from tests import ROOT
from tests.tiny_rewriter import make_tiny, metrics, tiny_args

pytestmark = pytest.mark.slow


def processes(number, *command):
    launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", number, *command]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        list(map(str, launched)), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_share_each_update_and_resume(tmp_path):
    make_tiny(tmp_path)
    run = tmp_path / "run"
    for steps in ("1", "2"):
        args = tiny_args(tmp_path, run, "--warm-steps", "2", "--max-steps", steps)
        said = processes(2, "train_ppo.py", *args)
    assert said.count("resuming after update 1") == said.count("Episode 5: ") == said.count("Episode 8: ") == 1
    assert [row["episode"] for row in metrics(run)] == [4, 8]
    for step in ("000001", "000002"):
        rows = [json.loads(line) for line in (run / "episodes" / f"{step}.jsonl").read_text().splitlines()]
        assert len({row["query"] for row in rows}) == 4
    assert (run / "model" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"backend": "own"}, "--backend own trains in one process"),
        ({"ppo": PPOOptions(micro_batch_size=2)}, "3 processes can't share 2 rewrites"),
    ],
)
def test_what_processes_can_not_share_is_refused(monkeypatch, given, says):
    Options(**given).check()
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UserError, match=says):
        Options(**given).check()
