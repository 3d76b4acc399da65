"""The loss by hand (test_trl_backend.py compares the rest with TRL), the order of questions, and divergence."""

import math

import pytest
import torch

from forage.errors import UserError
from forage.extras.rewriter.options import Options, PPOOptions
from forage.extras.rewriter.ppo import (
    TrainingBatch,
    entropy_of,
    logprobs_of,
    over_others,
    ppo_loss,
    rollout,
)
from forage.extras.rewriter.training import Recorder, batches_from
from tests.tiny_rewriter import batches_of, tiny_actors, tiny_rows


def close(tensor, expected):
    torch.testing.assert_close(tensor, torch.tensor(expected), rtol=0, atol=1e-6)


def test_logprobs_and_entropy_by_hand():
    logits = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0]]])
    close(logprobs_of(logits, torch.tensor([[0, 1]])), [[math.log(0.5), math.log(0.25)]])
    close(entropy_of(logits), [[math.log(2), -0.75 * math.log(0.75) - 0.25 * math.log(0.25)]])


def training_batch(advantages, values, returns):
    one = torch.ones_like(advantages)
    kept = one.bool()
    return TrainingBatch(one.long(), one.long(), torch.zeros_like(one), values, advantages, returns, kept, kept)


def test_the_loss_by_hand():
    options = PPOOptions(clip_range=0.2, value_clip_range=0.2, value_coef=0.1)
    logs = torch.tensor([[math.log(1.5), math.log(0.5)]])
    zero = torch.zeros(1, 2)
    # Advantage 1: 1.5 counts as 1.2, .5 as it is. The value .5 for a return of 1 counts as .2, whose error is .64.
    part = training_batch(torch.ones(1, 2), zero, torch.tensor([[1.0, 0.0]]))
    loss, figures = ppo_loss(logs, torch.tensor([[0.5, 0.0]]), part, options)
    close(loss, -0.85 + 0.1 * 0.16)
    close(figures["loss/policy_avg"], -(1.2 + 0.5) / 2)
    close(figures["loss/value_avg"], 0.5 * 0.64 / 2)
    close(figures["val/ratio"], 1.0)
    close(figures["policy/clipfrac_avg"], 0.5)
    close(figures["val/clipfrac_avg"], 0.5)
    close(figures["policy/approxkl_avg"], 0.5 * (math.log(1.5) ** 2 + math.log(0.5) ** 2) / 2)
    # Advantage -1: 1.5 counts as it is, .5 as .8.
    _, figures = ppo_loss(logs, zero, training_batch(-torch.ones(1, 2), zero, zero), options)
    close(figures["loss/policy_avg"], (1.5 + 0.8) / 2)


def test_grpo_judges_a_rewrite_by_the_others_of_its_question():
    half = 1 / math.sqrt(2)
    scores, penalties = torch.tensor([0.0, 1, 1, 1]), torch.tensor([0.0, 0, 0, -0.1])
    # The second group earns the same: its penalties would be all that differs.
    torch.testing.assert_close(over_others(scores, penalties, 2), torch.tensor([-half, half, 0, 0]), rtol=0, atol=2e-4)
    # Scores and penalties together: 0 and .8 - .8 are alike.
    close(over_others(torch.tensor([0.0, 0.8]), torch.tensor([0.0, -0.8]), 2), [0.0, 0.0])


def test_grpo_gives_all_tokens_of_an_episode_its_advantage_and_the_value_model_nothing():
    actors, _ = tiny_actors()
    actors.value_model.score.weight.data.normal_()
    batch = next(batches_of(tiny_rows(), actors.policy.pad_id))
    options = PPOOptions(algorithm="grpo", num_rollouts=2, kl_coef=0.0)
    found, _ = rollout(actors, batch, lambda *_: [0.0, 1.0, 3.0, 1.0], options)
    half = 1 / math.sqrt(2)
    wanted = torch.tensor([[-half], [half], [half], [-half]]) * found.mask_BR
    torch.testing.assert_close(found.advantages_BR, wanted, rtol=0, atol=2e-4)
    assert torch.equal(found.returns_BR, found.values_BR)


def test_every_query_is_trained_on_once_a_round_whatever_step_it_begins_at():
    rows = tiny_rows()
    batches = batches_from(0, rows, PPOOptions(batch_size=4), pad_id=99, seed=3)
    first = [next(batches) for _ in range(3)]
    assert sorted(row.query for batch in first[:2] for row in batch.rows) == [row.query for row in rows]
    drawn = torch.rand(2)
    several = next(batches_from(0, rows, PPOOptions(batch_size=8, num_rollouts=2), pad_id=99, seed=3))
    assert several.rows == [row for row in first[0].rows for _ in range(2)]
    later = batches_from(2, rows, PPOOptions(batch_size=4), pad_id=99, seed=3)
    assert next(later).rows == first[2].rows
    assert torch.equal(torch.rand(2), drawn)


def test_a_run_that_diverges_says_so(tmp_path):
    recorder = Recorder(Options(run_dir=tmp_path), None, None, None, None, [1.0], [])
    with pytest.raises(UserError, match="update 1: loss/policy_avg is nan; training diverged"):
        recorder.after_update({"policy/entropy_avg": 0.1, "loss/policy_avg": float("nan")})
