"""A base in bf16 has its logits in fp32 under every sharding: libraries that shard it hook into the output layer."""

import json
import os
import subprocess
import sys

import pytest
import torch

from forage.grpo.learner import Learner
from tests import ROOT
from tests.sharded_head_worker import bf16_policy
from tests.sharding_worker import micro_batches, update

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SHARDINGS = ("none", "fsdp2", "zero2", "zero3")


def test_logits_are_in_fp32_under_every_sharding(tmp_path, monkeypatch):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "tests/sharded_head_worker.py", tmp_path, *SHARDINGS],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]

    learner, first = Learner(bf16_policy()), micro_batches(1)[0]
    expected = learner.score(first, 1.0).logprobs_BT.detach()
    norms = [update(learner, step) for step in (1, 2)]
    monkeypatch.setattr("forage.policy.logprobs.fp32_logits", lambda head, hidden: head(hidden).float())
    rounded = Learner(bf16_policy()).score(first, 1.0).logprobs_BT.detach()
    assert (rounded - expected).abs().max() > 1e-3  # so it would show
    for sharding in SHARDINGS:
        found = json.loads((tmp_path / f"{sharding}.json").read_text())
        torch.testing.assert_close(torch.tensor(found["before"]), expected, atol=1e-5, rtol=0)
        assert found["norms"] == pytest.approx(norms, rel=5e-3)
