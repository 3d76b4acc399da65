"""A loss, an advantage and an engine of the user's own, in a file of theirs, by the same options as ours."""

import asyncio
import math
import sys
from dataclasses import replace

import pytest
import torch

from forage.engines.base import EngineOptions, Job, Request
from forage.engines.choice import open_engine
from forage.grpo.losses import ScoredBatch, Totals, advantages, loss_terms, policy_loss
from forage.grpo.options import LossOptions
from forage.policy.manifest import read_policy_manifest
from forage.policy.packing import pack
from tests import ROOT
from tests.factories import Sequence
from tests.pages import fenced
from tests.refusals import refused
from tests.tiny_training import tiny_options, train

[MINE] = [code for code in fenced(ROOT / "docs/training.md", "python") if "PolicyTerms" in code]  # as the page shows it


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_of_a_user.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_of_a_user", raising=False)  # the last test's
    return "mine_of_a_user"


def test_a_loss_of_ones_own(mine):
    """By hand: two sampled tokens with advantage 2 and log-probabilities log 1/2 and log 1/4; their mean is
    -2 (log 1/2 + log 1/4) / 2 = 3 log 2, and each has the gradient -2 / 2.
    """
    [batch], options = pack([Sequence((5, 6, 7), (0, 1, 1))], 100), LossOptions(loss=f"{mine}:likelihood")
    logprobs_BT = torch.tensor([[0.0, math.log(0.5), math.log(0.25)]], requires_grad=True)
    same = logprobs_BT.detach()
    scored = ScoredBatch(batch, torch.tensor([2.0]), logprobs_BT, old_BT=same, sampler_BT=same)
    loss = policy_loss(loss_terms(scored, options, Totals(2, 1)), options)
    loss.backward()
    assert loss.item() == pytest.approx(3 * math.log(2))
    assert logprobs_BT.grad.tolist() == [[0.0, -1.0, -1.0]]


def test_an_advantage_of_ones_own(mine):
    """By hand: 0 and 1 in a, minus their mean and halved; b is flat."""
    assert advantages([0, 1, 3, 3], "aabb", f"{mine}:halved").tolist() == [-0.25, 0.25, 0, 0]


def test_a_run_with_them_is_not_resumed_after_their_file_changed(mine, tiny, tmp_path):
    options = tiny_options(
        tiny, tmp_path / "run", max_steps=1, eval_every=0, loss=LossOptions(loss=f"{mine}:likelihood"),
        advantage=f"{mine}:halved",
    )  # fmt: skip
    train(options)
    assert (tmp_path / "run/adapters/v000001").is_dir()
    with (tmp_path / f"{mine}.py").open("a") as file:
        file.write("\n\ndef another(tokens, options): ...\n")
    with refused(f"another {mine}.py"):
        train(replace(options, max_steps=2))


def test_an_engine_of_ones_own(mine, tiny):
    async def sample(name="Parrot"):
        job = Job(read_policy_manifest(tiny / "policy"), 1, 64)
        async with open_engine(EngineOptions(engine=f"{mine}:{name}"), job) as engine:
            return await engine.generate(Request((5, 7), 2, (2,)))

    assert asyncio.run(sample()).ids == (7, 2)
    with refused("halved must be a subclass"):
        asyncio.run(sample("halved"))


def test_what_is_of_another_shape_is_refused(tmp_path, monkeypatch):
    """It would be broadcast: one mean for all tokens, one advantage for all episodes."""
    (tmp_path / "mistaken.py").write_text(
        "from forage.grpo.losses import PolicyTerms\n"
        "def mean(tokens, options): return PolicyTerms(tokens.logprobs_BT.mean())\n"
        "def bare(tokens, options): return -tokens.logprobs_BT\n"
        "def first(differences_N, groups): return differences_N[:1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    [batch], zeros_BT = pack([Sequence((5, 6, 7), (0, 1, 1))], 100), torch.zeros(1, 3)
    scored = ScoredBatch(batch, torch.tensor([2.0]), zeros_BT, old_BT=zeros_BT, sampler_BT=zeros_BT)
    for name in ("mean", "bare"):
        with refused(f"mistaken:{name} must return PolicyTerms"):
            loss_terms(scored, LossOptions(loss=f"mistaken:{name}"), Totals(2, 1))
    with refused("each of the 2 episodes"):
        advantages([0, 1], "aa", "mistaken:first")
