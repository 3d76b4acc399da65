"""A run that runs out of memory where this process can not repair it: its error says what the next start takes."""

import pytest
import torch

from forage.grpo.learner import Learner
from forage.optimizer import MemoryOptions
from forage.runs.stats import read_stats
from tests.refusals import refused
from tests.tiny_training import tiny_options, train


@pytest.fixture
def short(monkeypatch):
    """short(times): so many starts run out of memory in their first backward pass, as processes that share one do."""
    left, sizes, score = [0], [], Learner.score

    def scored(self, batch, temperature):
        if torch.is_grad_enabled():
            sizes.append(batch.tokens)
            if left[0]:
                left[0] -= 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return score(self, batch, temperature)

    monkeypatch.setattr(Learner, "score", scored)
    monkeypatch.setattr(Learner, "can_start_over", False)

    def short_for(times):
        left[0] = times
        sizes.clear()
        return sizes

    return short_for


def test_the_error_says_which_micro_batches_to_go_on_with(tiny, tmp_path, short):
    options = {"max_steps": 2, "eval_every": 0}
    sizes = short(1)
    with refused(r"^out of memory with micro-batches of 600 tokens .*give --token-budget 300, "):
        train(tiny_options(tiny, tmp_path / "run", **options))
    assert max(sizes) <= 600
    train(tiny_options(tiny, tmp_path / "run", **options, token_budget=300))
    assert max(sizes[1:]) <= 300
    assert [stats.step for stats in read_stats(tmp_path / "run")] == [0, 1]


@pytest.mark.parametrize(
    ("given", "longest", "quantized", "taken"),
    [
        (MemoryOptions(), 2048, True, MemoryOptions(4096, True)),
        (MemoryOptions(), 8000, False, MemoryOptions(8000, False)),
        (MemoryOptions(300, False), 2048, True, MemoryOptions(300, False)),
    ],
)
def test_a_gpu_has_defaults_of_its_own(monkeypatch, given, longest, quantized, taken):
    assert given.on_this_device(longest, quantized=quantized) is given
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert given.on_this_device(longest, quantized=quantized) == taken
