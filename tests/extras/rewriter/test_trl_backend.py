"""TRL's updates: the ratio is 1 at learning rate 0, and the weights agree with our own loop's."""

import tempfile
from pathlib import Path

import pytest
import torch

from forage.extras.rewriter.actors import Policy, make_actors, with_padding
from forage.extras.rewriter.options import ActorOptions, PPOOptions, SamplingOptions
from forage.extras.rewriter.ppo import Training, make_optimizer, train_own
from forage.extras.rewriter.trl_backend import train_trl
from tests.tiny_rewriter import batches_of, tiny_actors, tiny_lm, tiny_rows


def odd(rows, responses):
    """A reward that differs within every batch."""
    return [sum(token % 2 for token in tokens) / len(tokens) + row.relevant_doc_ids[0].count("3")
            for row, tokens in zip(rows, responses, strict=True)]  # fmt: skip


def adamw(actors, learning_rate):
    return make_optimizer(actors, learning_rate, [])


def trained(backend, actors, tokenizer, options, optimizer, updates=2, first=0):
    """Train for some updates; the figures of each."""
    figures = []
    batches = batches_of(tiny_rows(), actors.policy.pad_id, options.batch_size, first)
    training = Training(actors, optimizer, options, odd, figures.append)
    if backend == "own":
        train_own(training, batches, updates)
    else:
        padded = with_padding(tokenizer)
        with tempfile.TemporaryDirectory() as folder:
            train_trl(training, batches, updates, padded_tokenizer=padded, run_dir=Path(folder))
    return figures


def ending_actors(actor):
    """Actors some of whose responses end early: eos is the token they sample most often."""
    plain, tokenizer = tiny_actors(actor)
    torch.manual_seed(0)
    said = plain.policy.sample(next(batches_of(tiny_rows(), len(tokenizer))).ids_BT)[:, 1:]
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(said.flatten().mode().values.item())
    lm, _ = tiny_lm()
    policy = Policy(lm, SamplingOptions(max_new_tokens=6), tokenizer.eos_token_id, len(tokenizer), micro_batch=2)
    return make_actors(policy, actor, seed=0), tokenizer


@pytest.mark.parametrize(
    "actor",
    [
        ActorOptions(lora_rank=0), ActorOptions(), ActorOptions(value="separate"),
        ActorOptions(lora_rank=0, value="separate"),
    ],
)  # fmt: skip
def test_our_updates_equal_trls(actor):
    options = PPOOptions(gae_lambda=0.9, gamma=0.95)
    figures, weights = {}, {}
    for backend in ("trl", "own"):
        actors, tokenizer = ending_actors(actor)
        figures[backend] = trained(backend, actors, tokenizer, options, adamw(actors, 1e-3))
        weights[backend] = {name: weight.detach() for name, weight in actors.named_parameters()}
    # Not the ratio: TRL includes padding in its mean.
    same = ("objective/kl", "objective/scores", "objective/rlhf_reward", "objective/entropy", "loss/policy_avg",
            "loss/value_avg", "policy/clipfrac_avg", "val/clipfrac_avg")  # fmt: skip
    assert 0 < figures["own"][0]["val/num_eos_tokens"] < 4
    for ours, theirs in zip(figures["own"], figures["trl"], strict=True):
        for name in same:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-4), name
    assert figures["own"][1]["objective/kl"] > 0.01  # something was learned
    for name, weight in weights["own"].items():
        torch.testing.assert_close(weight, weights["trl"][name], rtol=0, atol=1e-4)


def test_micro_batches_change_no_update():
    """Responses of several lengths, some of which end early."""
    figures, weights = [], []
    for micro in (0, 1, 2):
        actors, tokenizer = ending_actors(ActorOptions())
        options = PPOOptions(micro_batch_size=micro)
        figures.append(trained("own", actors, tokenizer, options, adamw(actors, 1e-3)))
        weights.append(torch.cat([weight.detach().flatten() for weight in actors.parameters()]))
    assert 0 < figures[0][0]["val/num_eos_tokens"] < 4
    for number in (1, 2):
        torch.testing.assert_close(weights[number], weights[0], rtol=0, atol=1e-5)
        for ours, whole in zip(figures[number], figures[0], strict=True):
            assert ours == pytest.approx(whole, rel=1e-3, abs=1e-5)


def test_trl_resumes_exactly():
    """One update and another equal two: only weights and optimizer state are kept between them."""
    options = PPOOptions()
    actors, tokenizer = tiny_actors()
    whole = trained("trl", actors, tokenizer, options, adamw(actors, 1e-3))
    other, _ = tiny_actors()
    optimizer = adamw(other, 1e-3)
    parts = [trained("trl", other, tokenizer, options, optimizer, 1, step)[0] for step in (0, 1)]
    names = [name for name in whole[0] if name != "episode"]
    assert [[row[name] for name in names] for row in parts] == [[row[name] for name in names] for row in whole]
    assert all(torch.equal(one, two) for one, two in zip(actors.parameters(), other.parameters(), strict=True))
