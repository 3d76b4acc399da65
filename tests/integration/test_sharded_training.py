"""grpo_train.py sharded each way, on two processes, comes to the figures of the plain learner."""

import pytest
import torch
from safetensors.torch import load_file

from forage.policy.adapters import adapter_path
from forage.runs.stats import read_stats
from tests.kills import start, start_ranks
from tests.tiny import make_tiny
from tests.tiny_training import tiny_args

pytestmark = pytest.mark.slow
FIGURES = ("policy_loss", "entropy", "grad_norm", "tokens", "mismatch_mean_abs", "ratio_mean", "likelihood_gain")
STEPS = 2


def run(folder, name, *more, processes=1):
    arena = folder / name
    arena.mkdir(exist_ok=True)
    command = ("-m", "tests.tiny_training", "train", *tiny_args(
        folder, arena / "run", "--max-steps", str(STEPS), "--token-budget", "300", *more,
    ))  # fmt: skip
    started = start_ranks(command, arena) if processes > 1 else [start(command, arena)]
    assert [process.wait(600) for process in started] == [0] * processes, started[0].said[-3000:]
    return arena / "run"


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Policy and data."""
    return make_tiny(tmp_path_factory.mktemp("sharded"))


@pytest.fixture(scope="module")
def alone(folder):
    return run(folder, "alone")


WAYS = [("none", "none"), ("zero3", "all"), ("fsdp2", "none")]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("sharding", "offload"), WAYS)
def test_sharded_it_does_what_the_plain_learner_does(folder, alone, sharding, offload):
    name = f"{sharding}-{offload}"
    together = run(folder, name, "--sharding", sharding, "--offload", offload, processes=2)
    check_same(alone, together)
    # And the run goes on with the plain learner from what was left.
    assert (together / "state" / f"{STEPS:06d}" / "model.safetensors").exists()
    again = run(folder, name, "--max-steps", str(STEPS + 1))
    assert [row.step for row in read_stats(again)] == list(range(STEPS + 1))
