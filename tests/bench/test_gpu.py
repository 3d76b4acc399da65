"""The GPU benchmark: its arithmetic by hand, and its rows on a CPU."""

import json
import math
from dataclasses import replace

import pytest
import torch

from bench.gpu.__main__ import ROWS, main, parse
from bench.gpu.made import (
    QWEN_7B,
    TINY,
    layer_weights,
    made_episode,
    random_model,
    update_flops,
)  # fmt: skip


def test_the_model_has_its_real_size():
    """Qwen2.5-7B has 7,615,616,512 parameters, as its model card says."""
    model = random_model(QWEN_7B, torch.device("meta"))
    assert sum(weight.numel() for weight in model.parameters()) == 7_615_616_512
    linear = [part for part in model.get_decoder().modules() if isinstance(part, torch.nn.Linear)]
    assert layer_weights(QWEN_7B) == sum(part.weight.numel() for part in linear)


def test_operations_of_an_update_by_hand():
    """One layer with hidden 2, a head of 2 and an inner width of 1: 2 * 2*2 + 2 * 2*2 + 3 * 2*1 = 22 weights."""
    settings = {
        "num_hidden_layers": 1, "hidden_size": 2, "num_attention_heads": 1, "num_key_value_heads": 1,
        "intermediate_size": 1, "vocab_size": 3,
    }  # fmt: skip
    episode = made_episode(replace(TINY, policy=settings, prompt=2, turn=1, result=9), [0, 1, 2, 0])
    assert episode.mask == (0, 0, 1, 0)
    # 4 tokens of 4 * 22 + 6 * 5, 1 sampled token of 4 * 2 * 3, 6 * 2 per pair of tokens
    assert update_flops(settings, [episode], trained=5) == 4 * 118 + 24 + 12 * 16
    # a second one computes only the 2 tokens after the prompt, and 16 - 4 pairs
    assert update_flops(settings, [episode, episode], 5, prompt=2) == 6 * 118 + 48 + 12 * 28


@pytest.mark.slow
def test_all_rows_on_a_cpu(tmp_path):
    main(parse(["--tiny", "--json", str(tmp_path / "gpu.json")]))
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert list(rows) == list(ROWS)
    updates = {name: found for name, found in rows.items() if name.startswith("update")}
    plain = updates["update bf16"]
    for name, found in updates.items():
        assert found["tokens_per_second"] * found["seconds"] == pytest.approx(8 * 80), name  # of 40 to 120 tokens
        assert found["policy_loss"] == pytest.approx(plain["policy_loss"], abs=2e-3), name
        assert found["grad_norm"] == pytest.approx(plain["grad_norm"], rel=0.03), name
        assert found["mfu"] is None
    assert rows["sampling"]["sampled"] == 8 * 2 * 6
    assert math.isfinite(rows["machine"]["product_tflops"])
