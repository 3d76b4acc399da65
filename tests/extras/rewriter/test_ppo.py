"""PPO's formulas by hand, the order of questions, and divergence."""

import math

import pytest
import torch

from forage.extras.rewriter.options import Options, PPOOptions
from forage.extras.rewriter.ppo import (
    TrainingBatch,
    entropy_of,
    gae,
    last_places,
    logprobs_of,
    over_others,
    ppo_loss,
    rollout,
    token_rewards,
    whitened,
)
from forage.extras.rewriter.training import Recorder, batches_from
from tests.refusals import refused
from tests.tiny_rewriter import batches_of, tiny_actors, tiny_rows


def close(tensor, expected):
    torch.testing.assert_close(tensor, torch.tensor(expected), rtol=0, atol=1e-6)


def test_gae_by_hand():
    # d1 = 1 + 0 - .25 = .75; d0 = 0 + .25 - .5 = -.25; A1 = .75; A0 = -.25 + .5 * .75 = .125
    close(gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.25]]), 1.0, 0.5), [[0.125, 0.75]])
    # gamma .5, lambda 1: discounted return less value. Returns 1.75, 1.5, 1: of rewards 1, 1, 1.
    close(gae(torch.ones(1, 3), torch.tensor([[0.0, 0.5, 2.0]]), 0.5, 1.0), [[1.75, 1.0, -1.0]])
    # lambda 0: one step's errors alone
    close(gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.25]]), 1.0, 0.0), [[-0.25, 0.75]])


def test_where_a_response_ends_and_its_score_stands():
    tokens = torch.tensor([[5, 0, 0, 0], [5, 6, 7, 8], [0, 0, 0, 0], [5, 6, 7, 0]])
    last = last_places(tokens, eos_id=0)
    assert last.tolist() == [1, 3, 0, 3]
    kl = torch.tensor([[1.0, 2, 0, 0], [1, 1, 1, 1], [3, 0, 0, 0], [0, 0, 0, 0]])
    scores = torch.tensor([1.0, 0.5, 0.25, 1.0])
    expected = [[-0.1, -0.2, 1, 0], [-0.1, -0.1, -0.1, 0.4], [-0.3, 0.25, 0, 0], [0, 0, 0, 1.0]]
    close(token_rewards(kl, scores, last, 0.1), expected)


def test_whitening_by_hand():
    half = 1 / math.sqrt(2)
    mask = torch.tensor([[True, True, False]])
    close(whitened(torch.tensor([[1.0, 3.0, 99.0]]), mask), [[-half, half, 0.0]])


def test_logprobs_and_entropy_by_hand():
    logits = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0]]])
    close(logprobs_of(logits, torch.tensor([[0, 1]])), [[math.log(0.5), math.log(0.25)]])
    close(entropy_of(logits), [[math.log(2), -0.75 * math.log(0.75) - 0.25 * math.log(0.25)]])


def training_batch(advantages, values, returns, mask=None):
    one = torch.ones_like(advantages)
    kept = one.bool() if mask is None else mask
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


def test_padding_is_in_no_loss():
    mask = torch.tensor([[True, False]])
    part = training_batch(torch.ones(1, 2), torch.zeros(1, 2), torch.zeros(1, 2), mask)
    _, figures = ppo_loss(torch.tensor([[0.0, 50.0]]), torch.tensor([[0.0, 9.0]]), part, PPOOptions())
    names = ("loss/policy_avg", "loss/value_avg", "val/ratio", "policy/approxkl_avg")
    assert [figures[name] for name in names] == [-1, 0, 1, 0]


def test_a_batch_of_equal_rewards_is_not_whitened():
    actors, _ = tiny_actors()
    actors.value_model.score.weight.data.normal_()  # noise that whitening would blow up
    batch = next(batches_of(tiny_rows(), actors.policy.pad_id))
    flat, _ = rollout(actors, batch, lambda rows, _: [0.5] * len(rows), PPOOptions(kl_coef=0.0))
    mixed, _ = rollout(actors, batch, lambda rows, _: [0.0, 1.0] * (len(rows) // 2), PPOOptions(kl_coef=0.0))
    assert mixed.advantages_BR[mixed.mask_BR].std() == pytest.approx(1.0, abs=0.1)
    assert flat.advantages_BR.std() != pytest.approx(1.0, abs=0.1)


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
    with refused("update 1: loss/policy_avg is nan; training diverged"):
        recorder.after_update({"policy/entropy_avg": 0.1, "loss/policy_avg": float("nan")})
