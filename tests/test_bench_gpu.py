"""The GPU benchmark: its arithmetic by hand, its rows on a CPU, and what becomes of rows that fail or take too long."""

import json
import math
import os
import subprocess
import sys
import venv
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from bench import gpu
from bench.gpu_rows.agreement import apart
from bench.gpu_rows.device import peak_flops
from bench.gpu_rows.episodes import layer_weights, made_episode, made_episodes, update_flops
from bench.gpu_rows.longest import longest
from bench.gpu_rows.models import random_model
from bench.gpu_rows.scale import FULL, QWEN_7B, SMOLLM_135M, TINY
from tests import ROOT

# By hand


def test_the_models_have_their_real_sizes():
    """Qwen2.5-7B: 7,615,616,512 parameters; SmolLM2-135M: 134,515,008, as their model cards say."""
    on_meta = {
        name: random_model(settings, torch.device("meta"))
        for name, settings in (("7B", QWEN_7B), ("135M", SMOLLM_135M))
    }
    sizes = {name: sum(weight.numel() for weight in model.parameters()) for name, model in on_meta.items()}
    assert sizes == {"7B": 7_615_616_512, "135M": 134_515_008}
    linear = [part for part in on_meta["7B"].get_decoder().modules() if isinstance(part, torch.nn.Linear)]
    assert layer_weights(QWEN_7B) == sum(part.weight.numel() for part in linear)


def test_operations_of_an_update_by_hand():
    """One layer with hidden 2, a head of 2 and an inner width of 1: 2 * 2*2 + 2 * 2*2 + 3 * 2*1 = 22 weights."""
    settings = {
        "num_hidden_layers": 1, "hidden_size": 2, "num_attention_heads": 1, "num_key_value_heads": 1,
        "intermediate_size": 1, "vocab_size": 3,
    }  # fmt: skip
    scale = replace(TINY, policy=settings, prompt=2, turn=1, result=9)
    episode = made_episode(scale, [0, 1, 2, 0])
    assert episode.mask == (0, 0, 1, 0)
    # 4 tokens of 4 * 22 + 6 * 5, 1 sampled token of 4 * 2 * 3, 6 * 2 per pair of tokens
    assert update_flops(settings, [episode], trained=5) == 4 * 118 + 24 + 12 * 16
    # a second one computes only the 2 tokens after the prompt, and 16 - 4 pairs
    assert update_flops(settings, [episode, episode], 5, prompt=2) == 6 * 118 + 48 + 12 * 28


def test_episodes_are_spread_from_the_shortest_to_the_longest_and_groups_share_prompts():
    episodes = made_episodes(FULL)
    lengths = sorted(len(episode.ids) for episode in episodes)
    assert (len(episodes), lengths[0], lengths[-1], sum(lengths)) == (64, 1000, 4000, 64 * 2500)
    first = {}
    for episode in episodes:
        assert first.setdefault(episode.question_id, episode.ids[:600]) == episode.ids[:600]
        assert sum(episode.mask[:600]) == 0
        assert episode.mask[600:1000] == (1,) * 150 + (0,) * 250
    assert len(set(first.values())) == 8


@pytest.mark.parametrize(
    ("room", "known", "found", "tried"),
    [
        (11_000, 0, 10_240, [4096, 8192, 16384, 12288, 10240]),
        (99_999, 10_240, 32_768, [20480, 32768]),
        (99_999, 32_768, 32_768, []),
        (1500, 0, 1024, [4096, 2048, 1024]),
        (10, 0, 0, [4096, 2048, 1024]),
    ],
)
def test_the_longest_that_fits(room, known, found, tried):
    asked = []

    def fits(tokens):
        asked.append(tokens)
        return tokens <= room

    assert longest(fits, known, 4096, 32_768) == found
    assert asked == tried


def test_how_far_apart_by_hand():
    """Ratios 1, 1.35 and 2.12 at differences 0, .3 and .75: two above 1.2, one above 2."""
    found = apart(torch.tensor([-1.0, -0.7, -0.25]), torch.tensor([-1.0, -1.0, -1.0]))
    assert found == pytest.approx(
        {"mean": 0.35, "rms": math.sqrt((0.09 + 0.5625) / 3), "clipped_share": 2 / 3, "corrected_share": 1 / 3}
    )


def test_peaks_of_known_cards():
    assert peak_flops("NVIDIA H200") == peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("cpu") is None


def test_a_line_of_the_table():
    figures = {"tokens_per_second": 3100.4, "mfu": 0.31, "peak_gib": 22.51, "head": {"mean": 0.01234567}, "parts": 4}
    said = gpu.line(gpu.Result("update NF4", "measured", figures=figures))
    assert said == "| update NF4 | 3,100 | 31.0% | 22.5 | head mean 0.01235, parts 4 |"
    said = gpu.line(gpu.Result("longest", "failed", figures={"tokens_in_24_gib": 512}, message="out of memory"))
    assert said == "| longest |  |  |  | tokens_in_24_gib 512, failed: out of memory |"


# Rows that don't end well


def test_without_time_every_row_is_not_reached(tmp_path, capsys):
    with pytest.raises(SystemExit, match="nothing was measured"):
        gpu.main(gpu.parse(["--tiny", "--minutes", "0", "--json", str(tmp_path / "gpu.json")]))
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row["row"] for row in rows] == [row.name for row in gpu.ROWS]
    assert {row["status"] for row in rows} == {"not reached"}
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows)


def test_a_row_that_takes_too_long_is_stopped_with_what_it_had():
    worker = gpu.Worker(tiny=True)
    try:
        worker.lines.put(gpu.FIGURES + '{"tokens_in_24_gib": 512}')
        worker.lines.put("a library's line")
        result = worker.measure(gpu.ROWS[0], 0.05)
    finally:
        worker.stop()
    assert (result.status, result.figures) == ("timed out", {"tokens_in_24_gib": 512})
    assert worker.process.poll() is not None


# On real parts


def run(python, folder, *only):
    """The rows of a tiny run, by name."""
    path = folder / "gpu.json"
    command = [python, "-m", "bench.gpu", "--tiny", "--minutes", "4", "--json", path]
    subprocess.run([*command, *(["--only", *only] if only else [])], cwd=ROOT, check=True, env=without_ours())
    return {row["row"]: row for row in json.loads(path.read_text())["rows"]}


def without_ours():
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def numbers(figures):
    return {name: value for name, value in gpu.flat(figures).items() if isinstance(value, float | int)}


@pytest.mark.slow
def test_on_a_gpu_each_row_has_a_process_of_its_own(monkeypatch):
    started = []
    begin = gpu.Worker.__init__

    def counted(worker, **options):
        started.append(worker)
        begin(worker, **options)

    monkeypatch.setattr(gpu.Worker, "__init__", counted)
    rows = [gpu.ROWS[0], replace(gpu.ROWS[0], limit=0.01), gpu.ROWS[0]]
    found = [result.status for result in gpu.measure_all(rows, 120, tiny=True, reuse=False)]
    assert found == ["measured", "timed out", "measured"]
    assert len(started) == 3
    assert all(worker.process.poll() is not None for worker in started)


@pytest.mark.slow
def test_all_rows_on_a_cpu(tmp_path):
    rows = run(sys.executable, tmp_path)
    assert list(rows) == [row.name for row in gpu.ROWS]
    liger = rows.pop("update TRL and Liger bf16, checkpointing")  # its kernels need a GPU
    assert liger["status"] == "failed"
    for name, row in rows.items():
        assert row["status"] == "measured", f"{name}: {row['message']}"
        assert all(map(math.isfinite, numbers(row["figures"]).values())), name
    figures = {name: row["figures"] for name, row in rows.items()}

    updates = {name: found for name, found in figures.items() if name.startswith("update")}
    assert len(updates) == 5
    for name, found in updates.items():
        assert found["tokens_per_second"] * found["seconds"] == pytest.approx(8 * 80), name  # of 40 to 120 tokens
        assert found["policy_loss"] == pytest.approx(updates["update bf16"]["policy_loss"], abs=1e-4), name
        assert found["mfu"] is None
        assert found["peak_gib"] > 0.1
    norms = {name: found["grad_norm"] for name, found in updates.items() if "TRL" not in name}
    plain = norms["update bf16"]
    assert norms["update bf16, checkpointing"] == pytest.approx(plain, rel=0.03)
    for name in ("update NF4", "update NF4, checkpointing"):  # about the same model, but not the same weights
        assert 1e-4 < abs(norms[name] / plain - 1) < 0.2

    for name in ("sampling LocalEngine", "sampling generate", "sampling LocalEngine without cuDNN"):
        assert figures[name]["sampled"] == 8 * 2 * 6
    agreement = figures["log-probabilities"]
    assert agreement["tokens"] == 8 * 32
    assert -6 < agreement["mean_logprob"] < -1  # tokens as likely as a model's own, not noise
    assert agreement["all_fp32_to_fp32_cpu"]["mean"] < 1e-5
    for head in ("bf16", "fp32"):
        assert 1e-4 < agreement[f"{head}_head_trainer_to_fp32_cpu"]["mean"] < 0.1
        assert agreement[f"{head}_head_sampler_to_trainer"]["mean"] < 0.1  # a CPU's kernels may round both alike
    assert agreement["fp32_head_trainer_to_fp32_cpu"]["mean"] < agreement["bf16_head_trainer_to_fp32_cpu"]["mean"]

    for name in ("processes", "processes fsdp2"):
        assert figures[name]["backend"] == "gloo"
        assert figures[name]["all_reduced"] == 1024
        assert figures[name]["grad_norm"] == pytest.approx(figures[name]["plain_grad_norm"], rel=0.02)
    for name in ("longest episode NF4", "longest episode bf16"):
        assert [figures[name][f"tokens_in_{gib}_gib"] for gib in (24, 48, 80)] == [256] * 3
    for name in ("shares bf16, checkpointing", "shares NF4, checkpointing"):
        shares = [figures[name][part] for part in ("forward", "backward", "optimizer", "rest")]
        assert sum(shares) == pytest.approx(1)
        assert all(0 < share < 1 for share in (*shares, figures[name]["head_of_all"]))


@pytest.mark.slow
def test_on_a_machine_with_torch_transformers_and_peft_alone(tmp_path):
    """Not even tyro and rich are there; rows that want more say what is missing, and the others are measured."""
    python = environment(tmp_path / "venv", {"torch", "transformers", "peft", "safetensors", "numpy"}, without={"rich"})
    names = ("update bf16", "update NF4, checkpointing", "sampling", "log-probabilities", "processes", "shares bf16")
    rows = run(python, tmp_path, *names)
    missing = {name: row["message"] for name, row in rows.items() if row["status"] != "measured"}
    assert missing == {
        "update NF4, checkpointing": "ModuleNotFoundError: No module named 'bitsandbytes'",
    }
    assert len(rows) == 10
    assert "bench/gpu_rows/models.py" in rows["update NF4, checkpointing"]["trace"]


def environment(folder, wanted, without):
    """The interpreter of an environment with these libraries and what they require, linked from this one."""
    venv.create(folder, with_pip=False, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for name in required(wanted) - without:
        for file in distribution(name).files:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(Path(distribution(name).locate_file(top)).resolve())
    return folder / "bin" / "python"


def required(names):
    """These distributions and all that they require, without extras."""
    found, left = set(), set(names)
    while left:
        name = left.pop()
        found.add(name)
        needs = map(Requirement, distribution(name).requires or ())
        left |= {need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})} - found
    return found
