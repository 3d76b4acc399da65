"""A plot of a run of any length."""

import pytest

from forage.rewriter.plots import PANELS, draw_metrics


@pytest.mark.parametrize("updates", [1, 40])
def test_metrics_are_drawn(tmp_path, updates):
    names = [name for _, figures in PANELS for name in figures]
    draw_metrics([{"step": step + 1, **dict.fromkeys(names, step % 7)} for step in range(updates)], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
