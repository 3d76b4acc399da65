"""token_logprobs equals the plain formula in value and gradient, and skips tokens that were not sampled."""

from dataclasses import replace

import pytest
import torch

from forage.policy.logprobs import token_logprobs
from forage.policy.packing import pack
from tests.factories import Sequence, tiny_model
from tests.factories import plain_logprobs as plain


def batch_of():
    """The first has a token of a tool result between sampled ones, the second padding."""
    ids = torch.randint(1, 61, (15,), generator=torch.Generator().manual_seed(1)).tolist()
    masks = (0, 0, 0, 1, 1, 0, 1, 1, 1), (0, 0, 1, 1, 1, 1)
    [batch] = pack([Sequence(ids[:9], masks[0]), Sequence(ids[9:], masks[1])], 18)
    return batch


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
