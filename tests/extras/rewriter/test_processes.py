"""Processes that share an update of TRL's."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from forage.extras.rewriter.options import Options, PPOOptions
from tests import ROOT
from tests.refusals import refused
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


def test_two_processes_with_the_same_rows_learn_what_one_learns(tmp_path):
    """The mean of two equal gradients is each of them."""
    for number in (1, 2):
        processes(number, "-m", "tests.extras.rewriter.ppo_worker", tmp_path, 2 * number)
    one, *two = (load_file(tmp_path / f"{name}.safetensors") for name in ("1-0", "2-0", "2-1"))
    for weights in two:
        for name, weight in one.items():
            torch.testing.assert_close(weights[name], weight, rtol=0, atol=1e-6)
    moved = [name for name, weight in one.items() if "lora_B" in name and weight.abs().max() > 1e-3]
    assert {name.partition(".")[0] for name in moved} == {"policy", "value_model"}


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
    with refused(says):
        Options(**given).check()
