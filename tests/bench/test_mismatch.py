"""bench.mismatch: figures by hand."""

import pytest
import torch

from bench.mismatch import apart, bars


def test_figures_by_hand():
    """Ratios 1, 1.35 and 2.12 at differences 0, .3 and .75: two above 1.2."""
    found = apart(torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -0.7, -0.25]))
    assert found == pytest.approx({"mean": 0.35, "clipped": 2 / 3})


def test_a_swap_shows_in_the_tokens():
    """Own differences .01 and .02, the others' .5 and .05: 2.5 times the larger own one; .03 is too near."""
    near, swapped = bars([[0.01, 0.5], [0.05, 0.02]])
    assert (near.figures, swapped.figures) == (pytest.approx((2.0,)), pytest.approx((2.5,)))
    assert near.reached
    assert swapped.reached
    assert not bars([[0.01, 0.03], [0.05, 0.02]])[1].reached
    assert len(bars([[0.01]])) == 1
