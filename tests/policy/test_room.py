"""Defaults for the GPU of this process: filled in only where they were left out, and only on a GPU."""

import json

import pytest
import torch
from safetensors import safe_open

from forage.errors import UserError
from forage.grpo import training
from forage.grpo.strategies import CONFIGS
from forage.optimizer import MemoryOptions
from forage.policy.adapters import newest_adapter
from forage.policy.card import PolicyCard
from forage.policy.footprint import GIB, KNOWN, shape_of, weight_bytes
from forage.policy.memory import Work
from forage.policy.room import LIVE, fitted, offloaded, rank_of
from tests.tiny import make_base, make_policy
from tests.tiny_training import tiny_options

SEVEN = KNOWN["Qwen/Qwen2.5-7B-Instruct"]
LEFT_OUT = MemoryOptions()


@pytest.fixture
def adapter(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 8, "target_modules": ["q_proj", "v_proj"]}))
    return tmp_path


def card(folder, base="Qwen/Qwen2.5-7B-Instruct", dtype="bfloat16"):
    return PolicyCard(folder, base, base, True, dtype)


def with_gpu(monkeypatch, free):
    """A stand-in for a GPU of 24 GiB, of which so many are free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * GIB, 24 * GIB))


def test_a_gpu_fills_in_what_was_left_out(adapter, monkeypatch, capsys):
    with_gpu(monkeypatch, 23)
    found = fitted(LEFT_OUT, card(adapter), adapter, 2048, plays=False)
    assert found.token_budget >= 2048
    assert found.gradient_checkpointing is not None
    assert "memory: micro-batches of" in capsys.readouterr().out
    given = MemoryOptions(3000, True)
    assert fitted(given, card(adapter), adapter, 2048, plays=False) is given


@pytest.mark.parametrize(("planned", "set_to"), [("0.47", [0.47]), ("", []), (None, [])])
def test_a_trainer_keeps_to_its_share(tiny, tmp_path, monkeypatch, planned, set_to):
    """Before its policy is loaded. A stand-in for the allocator of a GPU."""
    shares = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    monkeypatch.setattr(training, "load_policy", lambda *_, **__: (_ for _ in ()).throw(UserError("loaded")))
    monkeypatch.delenv("PLAN_TRAIN_SHARE", raising=False)
    if planned is not None:
        monkeypatch.setenv("PLAN_TRAIN_SHARE", planned)
    with pytest.raises(UserError, match="loaded"):
        training.open_learner(tiny_options(tiny, tmp_path / "run"), card(tmp_path), tmp_path)
    assert shares == set_to


def test_too_little_room_gives_the_smallest_and_says_so(adapter, monkeypatch, capsys):
    with_gpu(monkeypatch, 4)
    assert fitted(LEFT_OUT, card(adapter), adapter, 2048, plays=False) == MemoryOptions(2048, True)
    assert "may not fit into 2.6 GiB" in capsys.readouterr().out
    kept = MemoryOptions(gradient_checkpointing=False)
    assert fitted(kept, card(adapter), adapter, 2048, plays=False) == MemoryOptions(2048, False)


def test_a_real_adapter_has_its_size(tmp_path):
    policy = make_policy(tmp_path / "policy", make_base(tmp_path / "base"))
    folder = newest_adapter(policy)
    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        size = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert shape_of(str(tmp_path / "base")).adapter(rank_of(folder)) == size


def test_what_is_kept_on_the_cpu_leaves_room(adapter, monkeypatch):
    """Worked out by hand: 8 bytes of state for a weight of the adapter; all weights but 300 million in bf16."""
    work = Work(8, "bf16")
    assert offloaded(SEVEN, work, "none") == 0
    assert offloaded(SEVEN, work, "optimizer") == 8 * SEVEN.adapter(8)
    assert offloaded(SEVEN, work, "all") == 8 * SEVEN.adapter(8) + weight_bytes(SEVEN, "bf16") - 600_000_000
    with_gpu(monkeypatch, 12)
    budgets = [
        fitted(MemoryOptions(gradient_checkpointing=True), card(adapter), adapter, 1024, plays=False, offload=offload)
        for offload in ("none", "all")
    ]
    assert budgets[1].token_budget > budgets[0].token_budget
    config = json.loads((CONFIGS / "zero3.json").read_text())["zero_optimization"]
    assert config["stage3_max_live_parameters"] == LIVE
