"""A loss, an advantage and an engine of the user's own, in a file of theirs, by the same options as ours."""

import asyncio
import math

import pytest
import torch

from forage.arguments import flags_of
from forage.engines.base import EngineOptions, Job, Request
from forage.engines.choice import ENGINES, open_engine
from forage.errors import UserError
from forage.grpo.losses import ADVANTAGES, LOSSES, ScoredBatch, Totals, advantages, loss_terms, policy_loss
from forage.grpo.options import LossOptions, UpdateOptions
from forage.policy.card import read_policy_card
from forage.policy.packing import pack
from tests.factories import Sequence

MINE = """
from forage.engines.base import Engine, Sample
from forage.grpo.losses import PolicyTerms

def likelihood(tokens, options):
    never = tokens.logprobs_BT > 0
    return PolicyTerms(-tokens.advantages_BT * tokens.logprobs_BT, tokens.ratio_BT(), never, never)

def halved(differences_N, groups):
    return differences_N / groups.sizes_G[groups.number_N]

class Parrot(Engine):
    async def generate(self, request):
        return Sample(request.ids[-1:], (0.0,), "stop")
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_of_a_user.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
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


def test_an_engine_of_ones_own(mine, tiny):
    async def sample():
        job = Job(read_policy_card(tiny / "policy"), 1, 64)
        async with open_engine(EngineOptions(engine=f"{mine}:Parrot"), job) as engine:
            return await engine.generate(Request((5, 7), 1, ()))

    assert asyncio.run(sample()).ids == (7,)


@pytest.mark.parametrize("name", ["nowhere:f", "mine_of_a_user:missing", "plain"])
def test_what_is_not_there(mine, name):
    with pytest.raises(UserError, match=name):
        advantages([0, 1], "aa", name)


@pytest.mark.parametrize(
    ("options", "name", "known"),
    [
        (LossOptions, "loss", LOSSES),
        (UpdateOptions, "advantage", ADVANTAGES),
        (EngineOptions, "engine", ["auto", *ENGINES]),
    ],
)
def test_options_name_what_the_dictionaries_hold(options, name, known):
    [flag] = [flag for flag in flags_of(options) if flag.field == name]
    assert flag.value == "|".join([*known, "MODULE:NAME"])
    assert flag.trust
