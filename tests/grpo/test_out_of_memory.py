"""A run that runs out of memory where this process can not repair it: the next start takes less; three are enough."""

from dataclasses import replace

import pytest
import torch

from forage.errors import UserError
from forage.grpo.learner import Learner
from forage.optimizer import MemoryOptions
from forage.policy.packing import OutOfMemory
from forage.runs.stats import read_stats
from tests.tiny_training import tiny_options, train

pytestmark = pytest.mark.usefixtures("no_plots")


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


def test_each_start_takes_smaller_micro_batches_and_three_at_one_step_are_enough(tiny, tmp_path, short, capsys):
    options = tiny_options(tiny, tmp_path / "run", max_steps=2, eval_every=0)
    for budget in (600, 300, 150):
        sizes = short(1)
        with pytest.raises(OutOfMemory, match=rf"^out of memory with micro-batches of {budget} tokens"):
            train(options)
        assert max(sizes) <= budget
    assert "memory ran out at step 0: continuing with micro-batches of 300 tokens" in capsys.readouterr().out
    sizes = short(0)
    with pytest.raises(UserError, match=r"^memory ran out 3 times at step 0.*OFFLOAD"):
        train(options)
    assert not sizes  # nothing was computed in vain
    train(tiny_options(tiny, tmp_path / "run", max_steps=2, eval_every=0, token_budget=100))  # as it says
    assert [stats.step for stats in read_stats(tmp_path / "run")] == [0, 1]
    (tmp_path / "run" / "shortage.json").write_text('{"step": 0}')
    with pytest.raises(UserError, match=r"shortage.json is damaged \(times: Field required\); remove it$"):
        train(replace(options, max_steps=3))


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
