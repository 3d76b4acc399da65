"""Processes that share an update: two equal one, and go on after a stop as one does."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from forage import processes
from forage.errors import UserError
from forage.rewriter.options import Options, PPOOptions, WarmOptions
from forage.rewriter.rewards import CustomRewardModel
from tests import ROOT
from tests.tiny_rewriter import batches_of, make_tiny, metrics, run, tiny_actors, tiny_args, tiny_lm, tiny_rows


def ending_lm():
    """A model that ends its response as often as it writes its likeliest token: shares are of different lengths."""
    lm, tokenizer = tiny_lm()
    policy = tiny_actors()[0].policy
    torch.manual_seed(0)
    likeliest = policy.sample(next(batches_of(tiny_rows(), policy.pad_id)).ids_BT)[:, 1:].flatten().mode().values
    lm.lm_head.weight.data[tokenizer.eos_token_id] = lm.lm_head.weight.data[likeliest]
    return lm, tokenizer


class Spread(CustomRewardModel):
    """A reward that differs within every batch."""

    def compute_reward(self, query, relevant_doc_ids):
        return sum(map(ord, query)) % 7 / 7


def torchrun(args):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*command, "train_ppo.py", *args], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    return done.returncode, done.stdout, done.stderr


def close(ours, theirs):
    return ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_equal_one(tmp_path):
    """Batches of 6, so that a share is 3 rows, or of a micro-batch one row and two; stopped after 2 updates of 4."""
    make_tiny(tmp_path, lm=ending_lm)
    one, two = tmp_path / "one", tmp_path / "two"
    reward = ("--reward", "tests.rewriter.test_processes:Spread")
    settings = ("--batch-size", "6", "--warm-batch-size", "3", "--micro-batch-size", "3", "--lora-rank", "0",
                "--warm-steps", "3", *reward)  # fmt: skip
    run(tiny_args(tmp_path, one, "--backend", "own", *settings))
    for steps in ("2", "4"):
        args = tiny_args(tmp_path, two, "--report-to", "tensorboard", *settings)
        code, said, errors = torchrun([*args, "--max-steps", steps])
        assert code == 0, errors
    assert said.count("resuming after update 2") == said.count("Episode 13: ") == said.count("Episode 24: ") == 1
    assert len(list((two / "tensorboard").rglob("events*"))) == 2  # one of each start, by the first process alone

    ours, theirs = metrics(two), metrics(one)
    assert [row["step"] for row in ours] == [1, 2, 3, 4]
    for row, expected in zip(ours, theirs, strict=True):
        assert row.keys() == expected.keys()
        for name in row:
            assert close(row[name], expected[name]), (row["step"], name)
    assert any(0 < row["val/num_eos_tokens"] < 6 for row in ours)
    assert ours[-1]["objective/kl"] > 1e-3  # something was learned
    for step in range(1, 5):
        episodes = [
            list(map(json.loads, (folder / "episodes" / f"{step:06d}.jsonl").read_text().splitlines()))
            for folder in (one, two)
        ]
        assert len(episodes[0]) == 6
        assert episodes[0] == episodes[1]
    weights = [load_file(folder / "model" / "model.safetensors") for folder in (one, two)]
    start = load_file(tmp_path / "model" / "model.safetensors")
    assert any((weights[0][name] - start[name]).abs().max() > 1e-3 for name in start)
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=0, atol=1e-4)
    assert (one / "evaluation.jsonl").read_text() == (two / "evaluation.jsonl").read_text()


def test_shares_by_hand(monkeypatch):
    assert processes.share(5) == slice(0, 5)
    monkeypatch.setattr(processes, "world", lambda: 3)
    shares = []
    for rank in range(3):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        shares.append(processes.share(5))
    assert shares == [slice(0, 1), slice(1, 3), slice(3, 5)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"backend": "trl"}, "--backend trl is for one process.* give --backend own"),
        ({"ppo": PPOOptions(batch_size=2)}, "--batch-size 2 is too few for 3 processes to share; give at least 3"),
        ({"ppo": PPOOptions(batch_size=4, micro_batch_size=2)}, "--micro-batch-size 2 is too few for 3"),
        ({"warm": WarmOptions(warm_steps=1, warm_batch_size=1)}, "--warm-batch-size 1 is too few for 3"),
    ],
)
def test_what_processes_can_not_share_is_refused(given, says):
    Options(**given).check_processes(1)
    with pytest.raises(UserError, match=says):
        Options(**given).check_processes(3)
