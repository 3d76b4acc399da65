"""The GPU benchmark: its model's size, and its rows on a CPU."""

import json

import pytest

from bench import gpu
from bench.gpu import BUDGET, QWEN_7B, ROWS, Options, main, random_model
from forage.grpo.own_server import row_of


def test_the_model_has_its_real_size(monkeypatch):
    """Qwen2.5-7B has 7,615,616,512 parameters, as its model card says."""
    monkeypatch.setattr(gpu, "DEVICE", "meta")
    assert sum(weight.numel() for weight in random_model(QWEN_7B).parameters()) == 7_615_616_512


def test_the_stacks_update_is_that_of_a_card_of_24_gb():
    assert row_of(24)[2:] == ["--token-budget", str(BUDGET), "--gradient-checkpointing"]


@pytest.mark.slow
def test_all_rows_on_a_cpu(tmp_path):
    main(Options(tiny=True, json=tmp_path / "gpu.json"))
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert list(rows) == list(ROWS)
    updates = {name: found for name, found in rows.items() if name.startswith("update")}
    plain = updates["update bf16"]
    for name, found in updates.items():
        assert found["tokens_per_second"] * found["seconds"] == pytest.approx(8 * 80), name
        assert found["policy_loss"] == pytest.approx(plain["policy_loss"], abs=2e-3), name
        assert found["grad_norm"] == pytest.approx(plain["grad_norm"], rel=0.03), name
    for name in ("sampling NF4", "sampling bf16"):
        assert rows[name]["sampled"] == 8 * 2 * 6
