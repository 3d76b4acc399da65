"""Runs of the tiny model that are sharded in different ways, and what they must agree on."""

import pytest
import torch
from safetensors.torch import load_file

from forage.agent.episode import append_episodes
from forage.data.records import read_questions
from forage.policy.adapters import adapter_path
from forage.runs.stats import read_stats
from tests.tiny import make_tiny, teach
from tests.tiny_training import tiny_args

FIGURES = ("policy_loss", "entropy", "grad_norm", "tokens", "mismatch_mean_abs", "ratio_mean", "demonstration_loss")
STEPS = 2


def make_inputs(folder):
    """Policy, data, and demonstrations."""
    make_tiny(folder)
    questions = read_questions(folder / "data" / "train.jsonl")[:4]
    append_episodes(folder / "shown.jsonl", teach(folder, questions))


def script(folder, name, *more):
    """Arguments of Python."""
    return ["-m", "tests.tiny_training", "train", *tiny_args(
        folder, folder / name / "run", "--max-steps", str(STEPS), "--token-budget", "300",
        "--demonstrations", str(folder / "shown.jsonl"), *more,
    )]  # fmt: skip


def check_same(alone, together):
    one, two = read_stats(alone), read_stats(together)
    assert len(one) == len(two) == STEPS
    assert one[0].rewards == two[0].rewards  # the first step's episodes are by the same adapter
    for figure in FIGURES:
        assert two[0].training[figure] == pytest.approx(one[0].training[figure], rel=1e-4, abs=1e-6), figure
    ours, theirs = (load_file(adapter_path(path, 1) / "adapter_model.safetensors") for path in (together, alone))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        # AdamW's first step is the sign of the gradient, so a gradient near 0 may go either way.
        assert (ours[name] - weight).abs().mean() < 1e-4, name
        assert torch.isfinite(ours[name]).all()
    assert one[1].training["grad_norm"] == pytest.approx(two[1].training["grad_norm"], rel=0.05)
