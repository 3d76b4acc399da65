"""Attention over slots: the form for GPUs gives what the form for CPUs gives."""

import pytest
import torch

from forage.engines.local import Prefill


@pytest.mark.parametrize("window", [3, 100])
@pytest.mark.parametrize(("start", "end"), [(0, 7), (3, 7), (6, 7), (0, 1)])
def test_both_forms_of_a_prefill_agree(start, end, window):
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(1, 6, end - start, 8, generator=draw)  # three query heads share a head of keys
    keys, values = (torch.randn(1, 2, end, 8, generator=draw) for _ in range(2))
    view = Prefill(0, start, end)
    ours, theirs = (attend(query, keys, values, 0.3, window) for attend in (view.attend_on_gpu, view.attend))
    torch.testing.assert_close(ours, theirs)
