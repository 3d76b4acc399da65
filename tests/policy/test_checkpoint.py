"""A checkpoint restores weights, optimiser and random state exactly; half-written ones are ignored."""

import torch
from torch import nn

from forage.policy.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from tests.refusals import refused


def made(size=3):
    torch.manual_seed(0)
    model = nn.Linear(size, 2)
    model.bias.requires_grad_(False)
    return model, torch.optim.AdamW([model.weight], lr=0.1)


def steps(model, optimizer, count):
    for _ in range(count):
        (model(torch.randn(4, model.in_features)) * torch.rand(2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_going_on_equals_never_having_stopped(tmp_path):
    model, optimizer = made()
    steps(model, optimizer, 3)
    save_checkpoint(tmp_path, 3, model, optimizer, {"rows": [1]})
    steps(model, optimizer, 3)
    again, second = made()
    assert load_checkpoint(tmp_path, again, second) == (3, {"rows": [1]})
    steps(again, second, 3)
    assert torch.equal(model.weight, again.weight)


def test_only_the_last_is_kept_and_a_half_written_one_does_not_count(tmp_path):
    model, optimizer = made()
    assert load_checkpoint(tmp_path, model, optimizer) is None
    steps(model, optimizer, 1)
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, step, model, optimizer, step)
    (tmp_path / ".partial.x").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["000010"]
    assert load_checkpoint(tmp_path, model, optimizer) == (10, 10)
    save_checkpoint(tmp_path, 10, model, optimizer, "again")
    assert load_checkpoint(tmp_path, model, optimizer) == (10, "again")


def test_another_models_checkpoint_is_refused(tmp_path):
    model, optimizer = made()
    steps(model, optimizer, 1)
    save_checkpoint(tmp_path, 1, model, optimizer, 1)
    with refused("of another model or adapter"):
        load_checkpoint(tmp_path, *made(5))


def test_the_gpus_random_states_are_restored(tmp_path, monkeypatch):
    """Two GPUs, then one."""
    states = [torch.tensor([7], dtype=torch.uint8), torch.tensor([8], dtype=torch.uint8)]
    restored = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: restored.update({device: state.item()}))
    save_checkpoint(tmp_path, 1, *made(), {})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    load_checkpoint(tmp_path, *made())
    assert restored == {0: 7, 1: 8}
    restored.clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    load_checkpoint(tmp_path, *made())
    assert restored == {0: 7}
