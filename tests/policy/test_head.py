"""The output layer in fp32: its logits are not rounded to bf16, and its gradients are those of the plain layer."""

import asyncio

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from forage.engines.base import Request
from forage.engines.local import LocalEngine
from forage.policy.logprobs import token_scores
from forage.policy.packing import pack
from forage.policy.precision import fp32_logits
from tests.factories import Sequence, tiny_model


def head_of(rows, bias=None):
    head = nn.Linear(len(rows[0]), len(rows), bias=bias is not None, dtype=torch.bfloat16)
    with torch.no_grad():
        head.weight.copy_(torch.tensor(rows))
        if bias is not None:
            head.bias.copy_(torch.tensor(bias))
    return head


def random_head(tokens=61, width=32, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return nn.Linear(width, tokens, bias=False, dtype=dtype)


def test_a_logit_by_hand():
    """16 + 1/16 has 9 significant bits, and bf16 has 8: between 16 and 32 it knows only multiples of 1/8."""
    head, hidden = head_of([[1.0, 1.0], [1.0, -1.0]]), torch.tensor([[16.0, 1 / 16]], dtype=torch.bfloat16)
    assert head(hidden).tolist() == [[16.0, 15.9375]]
    assert fp32_logits(head, hidden).tolist() == [[16.0625, 15.9375]]
    assert fp32_logits(head_of([[1.0, 1.0]], [2.0]), hidden).tolist() == [[18.0625]]


@pytest.mark.parametrize("trained", [False, True])
def test_gradients_are_the_plain_layers(trained):
    gradients, upstream = [], torch.randn(5, 61)
    for logits_of in (fp32_logits, lambda head, hidden: head(hidden).float()):
        head, hidden = random_head().requires_grad_(trained), torch.ones(5, 32).bfloat16().requires_grad_()
        logits_of(head, hidden).backward(upstream)
        assert (head.weight.grad is not None) == trained
        gradients.append([hidden.grad, *([head.weight.grad] if trained else [])])
    for ours, plain in zip(*gradients, strict=True):
        assert ours.dtype == torch.bfloat16
        assert torch.equal(ours, plain)


@pytest.mark.parametrize("tied", [False, True])
def test_log_probabilities_in_bf16_have_logits_in_fp32(tied):
    """Against the formula with logits in fp64, from the same hidden states; with rounded logits it would not hold."""
    model = tiny_model(tie_word_embeddings=tied).bfloat16()
    model.lm_head.weight.data *= 40
    ids = tuple(range(3, 20))
    [batch] = pack([Sequence(ids, (0,) + (1,) * 16)], 64)
    hidden = model.model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT).last_hidden_state[0, :-1]
    chosen = torch.tensor(ids[1:])[:, None]
    exact = (hidden.double() @ model.lm_head.weight.double().T).log_softmax(-1)
    rounded = linear(hidden, model.lm_head.weight).double().log_softmax(-1)
    found = token_scores(model, batch, chunk=4)
    torch.testing.assert_close(found.logprobs_BT[0, 1:].double(), exact.gather(1, chosen)[:, 0], atol=1e-4, rtol=0)
    torch.testing.assert_close(found.entropy_BT[0, 1:].double(), -(exact.exp() * exact).sum(-1), atol=1e-4, rtol=0)
    assert not found.entropy_BT.requires_grad
    assert (rounded - exact).gather(1, chosen).abs().mean() > 3e-3
    found.logprobs_BT.sum().backward()
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert model.lm_head.weight.grad.isfinite().all()


def test_the_local_engine_samples_with_logits_in_fp32():
    model = tiny_model().bfloat16()
    model.lm_head.weight.data *= 40
    seen = []
    model.model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output[0, -1]))
    sample = asyncio.run(LocalEngine(model, 1).generate(Request((1, 2, 3), 12, (), 0)))
    exact = (torch.stack(seen).double() @ model.lm_head.weight.double().T).log_softmax(-1)
    own = torch.tensor(sample.logprobs).double()
    torch.testing.assert_close(own, exact.gather(1, torch.tensor(sample.ids)[:, None])[:, 0], atol=1e-4, rtol=0)
