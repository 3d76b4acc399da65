"""Training: the order of questions, and divergence."""

import pytest
import torch

from forage.errors import UserError
from forage.extras.rewriter.options import Options, PPOOptions
from forage.extras.rewriter.training import Recorder, batches_from
from tests.tiny_rewriter import tiny_rows


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
