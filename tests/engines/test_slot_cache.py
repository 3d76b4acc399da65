"""Attention over slots: the form for GPUs gives what the form for CPUs gives."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from forage.engines.local import Decode, Prefill


@pytest.mark.parametrize("window", [3, 100])
@pytest.mark.parametrize(("start", "end"), [(0, 7), (3, 7), (6, 7), (0, 1)])
def test_a_prefill_is_attention_by_its_mask(start, end, window):
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(1, 6, end - start, 8, generator=draw)  # three query heads share a head of keys
    keys, values = (torch.randn(1, 2, end, 8, generator=draw) for _ in range(2))
    view = Prefill(0, start, end)
    seen = view.seen(window, query.device)
    masked = scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(view.attend(query, keys, values, 0.3, window), masked)


def test_a_prefill_by_hand():
    """Keys of 0 make all tokens alike, so each position's output is the mean of the values up to it."""
    values = torch.tensor([1.0, 2.0, 6.0]).view(1, 1, 3, 1)
    nothing = torch.zeros(1, 1, 3, 1)
    for start, expected in ((0, [1.0, 1.5, 3.0]), (1, [1.5, 3.0])):
        view = Prefill(0, start, 3)
        found = view.attend(nothing[:, :, start:], nothing, values, 1.0, 100)
        assert found.flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("window", [2, 100])
def test_several_tokens_of_a_slot_attend_as_if_one_after_the_other(window):
    """Tokens 4 and 5 of slot 0, none of slot 1, token 2 of slot 2; three query heads share a head of keys."""
    draw = torch.Generator().manual_seed(0)
    kept, new_keys, new_values = (
        torch.randn(*shape, generator=draw) for shape in ((2, 3, 2, 8, 8), (1, 2, 3, 8), (1, 2, 3, 8))
    )
    query = torch.randn(1, 6, 3, 8, generator=draw)
    view = Decode.of([(0, 0, 4), (0, 1, 5), (2, 0, 2)], 7, query.device)
    untouched = kept[:, 1].clone()
    keys, values = view.store(kept[0], new_keys), view.store(kept[1], new_values)
    together = view.attend(query, keys, values, 0.3, window)
    assert torch.equal(kept[:, 1], untouched)
    assert torch.equal(kept[0, 0, :, 5], new_keys[0, :, 1])
    parts = [Prefill(0, 4, 6).attend(query[:, :, :2], keys[:1, :, :6], values[:1, :, :6], 0.3, window)]
    parts += [Prefill(2, 2, 3).attend(query[:, :, 2:], keys[2:, :, :3], values[2:, :, :3], 0.3, window)]
    torch.testing.assert_close(together, torch.cat(parts, dim=2))


def test_a_window_by_hand():
    """Over two tokens up to itself: of values 1 2 6, the means 1, 1.5 and 4; one token later, of 6 and 8, 7."""
    values = torch.tensor([1.0, 2.0, 6.0, 8.0]).view(1, 1, 4, 1)
    nothing = torch.zeros_like(values)
    view = Prefill(0, 0, 3)
    found = view.attend(nothing[:, :, :3], nothing[:, :, :3], values[:, :, :3], 1.0, 2)
    assert found.flatten().tolist() == pytest.approx([1, 1.5, 4])
    step = Decode.of([(0, 0, 3)], 4, values.device)
    assert step.attend(nothing[:, :, :1], nothing, values, 1.0, 2).item() == pytest.approx(7)
    assert step.attend(nothing[:, :, :1], nothing, values, 1.0, 100).item() == pytest.approx(17 / 4)
