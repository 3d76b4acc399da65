"""token_logprobs equals the plain formula in value and gradient, and skips tokens that were not sampled."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from forage.policy.logprobs import chunk_scores, token_logprobs
from forage.policy.packing import TokenBatch
from tests.factories import plain_logprobs as plain
from tests.factories import tiny_model


def batch_of(lengths=(9, 6), prompts=(3, 2), width=10):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 61, (len(lengths), width), generator=generator)
    attention, sampled = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, (length, prompt) in enumerate(zip(lengths, prompts, strict=True)):
        attention[row, :length] = 1
        sampled[row, prompt:length] = 1
    sampled[0, 5] = 0  # a token of a tool result, between sampled ones
    return made_of(ids, attention, sampled)


def made_of(ids, attention, sampled):
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    sequence = torch.arange(ids.shape[0])[:, None].expand_as(ids)
    return TokenBatch(ids, positions, sampled, sequence, attention)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("chunk", [1, 4, 256])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_the_plain_formula(tied, chunk, temperature):
    model, batch = tiny_model(tie_word_embeddings=tied), batch_of()
    weights = torch.linspace(-1, 1, batch.ids_BT.numel()).view_as(batch.ids_BT)
    gradients = []
    for logprobs in (token_logprobs(model, batch, chunk, temperature), plain(model, batch, temperature)):
        model.zero_grad()
        (logprobs * weights).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        if len(gradients) == 1:
            ours = logprobs
    torch.testing.assert_close(ours, plain(model, batch, temperature), atol=1e-5, rtol=0)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-5, rtol=1e-4)


def test_padding_at_the_end_needs_no_mask():
    """On a GPU none is given; tokens don't attend to what comes after them, and padding is not sampled."""
    model, batch = tiny_model(), batch_of()
    without = token_logprobs(model, replace(batch, attention_BT=None))
    torch.testing.assert_close(without, token_logprobs(model, batch), atol=1e-5, rtol=0)
    assert without.count_nonzero() == 9 - 3 - 1 + 6 - 2


def test_a_value_by_hand():
    head = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    # Logits 2, 1, 0: log-probability of the first is 2 - log(e^2 + e^1 + e^0).
    found, entropy = chunk_scores(head, 1.0, torch.tensor([[2.0, 1.0]]), torch.tensor([0]))
    chances = [math.exp(x) / (math.exp(2) + math.exp(1) + 1) for x in (2, 1, 0)]
    assert entropy.item() == pytest.approx(-sum(p * math.log(p) for p in chances), abs=1e-6)
    assert not entropy.requires_grad
    assert found.item() == pytest.approx(2 - math.log(math.exp(2) + math.exp(1) + 1), abs=1e-6)
    halved, _ = chunk_scores(head, 2.0, torch.tensor([[2.0, 1.0]]), torch.tensor([0]))
    assert halved.item() == pytest.approx(1 - math.log(math.exp(1) + math.exp(0.5) + 1), abs=1e-6)


def test_a_divergence_and_its_gradient_by_hand():
    """The teacher's chances are 1/2, 1/4, 1/4 and the policy's 1/4, 1/4, 1/2, at temperature 2."""
    head = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.eye(3))
    own, theirs = (torch.tensor([[2 * math.log(chance) for chance in row]]) for row in ((1, 1, 2), (2, 1, 1)))
    own.requires_grad_()
    *_, divergence = chunk_scores(head, 2.0, own, torch.tensor([0]), theirs)
    divergence.sum().backward()
    assert divergence.item() == pytest.approx(math.log(2) / 2 - math.log(2) / 4, abs=1e-6)
    torch.testing.assert_close(own.grad, torch.tensor([[-1 / 4, 0.0, 1 / 4]]) / 2)  # its chances less the teacher's


def test_only_positions_before_sampled_tokens_reach_the_output_layer():
    model, batch = tiny_model(), batch_of()
    seen = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].shape[0]))
    with torch.no_grad():
        logprobs = token_logprobs(model, batch, chunk=4)
    sampled = int(batch.sampled_BT.sum())
    assert sampled == 9  # 6 and 4, minus the tool result's token
    assert seen == [4, 4, 1]
    assert logprobs[batch.sampled_BT == 0].abs().sum() == 0
    assert (logprobs[batch.sampled_BT == 1] < 0).all()
