"""A run that was tampered with doesn't come out again, and the first step that doesn't is named."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import grpo_rollout
from forage.agent.episode import read_episodes, write_episodes
from forage.policy.manifest import read_policy_manifest
from forage.publishing.audit import Options, main
from forage.runs import run_folder
from tests import ROOT
from tests.refusals import refused
from tests.tiny import rewards_of_tokens
from tests.tiny_training import tiny_options, train


@pytest.fixture(scope="module")
def honest(tiny, tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    for name, seed in (("run", 0), ("other", 1)):
        train(tiny_options(tiny, runs / name, seed=seed, keep_adapters=0))
    return runs


@pytest.fixture
def runs(honest, tmp_path, monkeypatch, no_plots):
    monkeypatch.setattr(grpo_rollout, "get_reward_functions", rewards_of_tokens)
    return shutil.copytree(honest, tmp_path / "runs")


def change_episodes(run, step, change):
    [path] = (run / "episodes" / f"{step:06d}").glob("*.jsonl.gz")
    first, *rest = read_episodes(path)
    path.unlink()
    write_episodes(path.with_suffix(""), [change(first), *rest])


def edited_reward(runs):
    def change(episode):
        object.__setattr__(episode, "rewards", {**episode.rewards, "even": 1.0})
        return episode

    change_episodes(runs / "run", 1, change)
    return "000001: episode .* has even 1.0, and earns 0"


def edited_log_probability(runs):
    def change(episode):
        given = [x - 1e-3 * bit for x, bit in zip(episode.logprobs, episode.mask, strict=True)]
        object.__setattr__(episode, "logprobs", tuple(given))
        return episode

    change_episodes(runs / "run", 1, change)
    return "adapters/v000002 is not what the steps before come to: it is [0-9.e+-]+ of the last one's change away"


def other_episodes(runs):
    shutil.rmtree(runs / "run/episodes/000001")
    shutil.copytree(runs / "other/episodes/000001", runs / "run/episodes/000001")
    return "episodes/000001 (lacks episodes|holds episodes of other-v000001)"


def adapter_of_elsewhere(runs):
    path = runs / "run/adapters/v000003/adapter_model.safetensors"
    save_file({name: weight + 1e-6 for name, weight in load_file(path).items()}, path)
    return (
        "adapters/v000003 is not what the steps before come to: it is 0.00[0-9]+ of the last one's change away; a run"
    )


def dropped_step(runs):
    (runs / "run/training_stats_1.json").unlink()
    return "lacks statistics of some of its first 2 steps"


def shifted_seed(runs):
    path = runs / "run/run.json"
    manifest = json.loads(path.read_text())
    manifest["options"]["rollout"]["seed"] = 5
    path.write_text(json.dumps(manifest))
    return "episodes/00000. lacks episodes"


def edited_statistics(runs):
    path = runs / "run/training_stats_1.json"
    stats = json.loads(path.read_text())
    stats["training"]["grad_norm"] *= 0.9
    path.write_text(json.dumps(stats))
    return "step 1: the run's statistics have another training"


@pytest.mark.parametrize("tamper", [
    edited_reward, edited_log_probability, other_episodes, adapter_of_elsewhere, dropped_step, shifted_seed,
    edited_statistics,
])  # fmt: skip
def test_what_was_tampered_with_is_found(runs, tamper):
    with refused(tamper(runs)):
        main(Options(runs / "run"))


@pytest.mark.parametrize("until", [0, 1, 2])
def test_an_honest_run_is_found_equal_and_left_as_it_is(runs, capsys, until):
    before = {path: path.read_bytes() for path in (runs / "run").rglob("*") if path.is_file()}
    main(Options(runs / "run", until))
    assert capsys.readouterr().out.splitlines()[-1] == f"audited: {until or 3} of 3 steps are equal"
    assert {path: path.read_bytes() for path in (runs / "run").rglob("*") if path.is_file()} == before


def test_a_run_that_went_on_comes_out_again_up_to_where_it_learnt_at_another_rate(tiny, runs, capsys):
    for more in ({"max_steps": 1}, {"max_steps": 2}, {"max_steps": 3, "learning_rate": 0.02}):
        train(tiny_options(tiny, runs / "longer", keep_adapters=0, **more))
    with refused("longer went on with another --learning-rate at step 2; give --until 2"):
        main(Options(runs / "longer"))
    main(Options(runs / "longer", until=2))
    assert capsys.readouterr().out.splitlines()[-1] == "audited: 2 of 3 steps are equal"


def test_elsewhere_rounding_is_forgiven_and_no_more(runs, capsys, monkeypatch):
    """Weights that differ as another processor's would; then by a tenth of what the step changed."""
    monkeypatch.setattr("forage.publishing.audit.environment", lambda: {**run_folder.environment(), "processor": "Z"})
    path, first = (runs / f"run/adapters/v00000{n}/adapter_model.safetensors" for n in (3, 2))
    weights, earlier = load_file(path), load_file(first)
    save_file({name: weight + 0.01 * (weight - earlier[name]) for name, weight in weights.items()}, path)
    main(Options(runs / "run"))
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "audited: 3 of 3 steps come out again up to rounding, 0.01 of a step's change at most"
    save_file({name: weight + 0.1 * (weight - earlier[name]) for name, weight in weights.items()}, path)
    with refused("v000003 is not what the steps before come to: it is 0.1 of the last one's change away"):
        main(Options(runs / "run"))


AS_OLDER = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
AUDIT = """
import sys
from pathlib import Path
import grpo_rollout
from forage.publishing.audit import Options, main
from tests.tiny import rewards_of_tokens
grpo_rollout.get_reward_functions = rewards_of_tokens
main(Options(Path(sys.argv[1])))
"""


def test_another_kind_of_processor_comes_to_the_same_up_to_rounding(runs):
    """The instructions of one without AVX-512 round otherwise; on such a processor nothing does."""
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, str(runs / "run")],
        cwd=ROOT,
        env=os.environ | AS_OLDER,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    older = torch.backends.cpu.get_cpu_capability() == "AVX2"
    how = "are equal" if older else r"come out again up to rounding, [0-9.e-]+ of a step's change at most"
    assert re.fullmatch(f"audited: 3 of 3 steps {how}", done.stdout.splitlines()[-1])


def test_a_run_is_audited_in_the_number_type_that_it_was_trained_in(runs, monkeypatch):
    monkeypatch.setattr(
        "forage.publishing.audit.read_policy_manifest", lambda path: replace(read_policy_manifest(path), dtype="auto")
    )
    path = runs / "run/environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto": "float16"}))
    with refused("run was trained in float16, and this machine computes in (float32|bfloat16); audit it on another"):
        main(Options(runs / "run"))


def test_what_is_no_run_is_refused(tmp_path):
    with refused("has no run.json; name a run folder of grpo_train.py"):
        main(Options(tmp_path))
