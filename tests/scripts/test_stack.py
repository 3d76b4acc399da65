"""scripts/stack.sh: what it runs follows from .env and the environment, and no line of .env is ever run."""

import os
import subprocess

from tests import ROOT


def stack(verb, env_file, **settings):
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        ["bash", ROOT / "scripts" / "stack.sh", verb], capture_output=True, text=True,
        env=plain | {"ENV_FILE": str(env_file), "DEVICE": "cpu"} | settings,
    )  # fmt: skip


def test_all_processes_agree_on_how_episodes_are_played(tmp_path):
    env_file = tmp_path / "env"
    env_file.write_text(
        "# a remark\nMAX_STEPS=12\nTRAIN_ARGS=--beta 0.01 --advantage rloo\nNUM_ROLLOUTS=4\n"
        f"VLLM_ARGS=$(touch {tmp_path}/run)\n"
    )
    shown = stack("show", env_file, NUM_ROLLOUTS="6")
    assert shown.returncode == 0, shown.stderr
    train = next(line for line in shown.stdout.splitlines() if "grpo_train.py" in line)
    rollout = next(line for line in shown.stdout.splitlines() if "grpo_rollout.py" in line)
    assert "--max-steps 12" in train
    assert train.endswith("--beta 0.01 --advantage rloo")
    shared = rollout.split("--data ")[1].split()  # the same options, word for word
    assert train.split("--data ")[1].split()[: len(shared)] == shared
    assert "--num-rollouts 6" in rollout  # the environment goes before the file
    assert not (tmp_path / "run").exists()


def test_a_gpu_has_other_defaults_and_several_processes_are_sharded(tmp_path):
    on_gpu = stack("show", tmp_path / "none", DEVICE="cuda", TRAIN_PROCESSES="4").stdout
    assert "--nproc-per-node 4 grpo_train.py" in on_gpu
    assert "--sharding zero3" in on_gpu
    assert "--no-quantize" not in on_gpu
    assert "--gpu-memory-utilization 0.85" in on_gpu
    without = stack("show", tmp_path / "none").stdout
    assert "--sharding" not in without
    assert "--no-quantize" in without


def test_lines_of_env_are_read_as_docker_reads_them(tmp_path):
    env_file = tmp_path / "env"
    env_file.write_bytes(
        b"RUN=\"second\"\r\nBATCH_SIZE=16   # questions\nROLLOUT_ARGS='--seed 4 --concurrency 5'\n"
        b"NUM_ROLLOUTS=6  \nMAX_STEPS=5"  # the last line, without an end
    )
    shown = stack("show", env_file).stdout
    assert "--run-dir ./runs/second --engine" in shown
    assert "--batch-size 16 --num-rollouts 6 " in shown
    assert "--seed 4 --concurrency 5" in shown
    assert "--max-steps 5 " in shown
    # Each line of the example may be taken as it stands.
    example = (ROOT / ".env.example").read_text()
    env_file.write_text("".join(f"{line.removeprefix('# ')}\n" for line in example.splitlines() if "=" in line))
    shown = stack("show", env_file, DEVICE="cuda").stdout
    plain = stack("show", tmp_path / "none", DEVICE="cuda", CHROMA_URL="http://chroma:8000").stdout
    told = " --k 3 --passage-tokens 120 --mode hybrid --max-turns 4 --max-turn-tokens 512 --max-tokens 2048"
    assert shown.count(told) == 3  # warm start, rollout and training; without .env the policy tells the latter two
    assert plain.count(told) == 1
    assert shown.replace(told, "") == plain.replace(told, "")
    assert "#" not in shown.replace("# once", "").replace("# pane", "")


def test_gpus_are_shared_out_and_adapters_may_be_loaded(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/bash\necho "gpus=$CUDA_VISIBLE_DEVICES lora=$VLLM_ALLOW_RUNTIME_LORA_UPDATING $*"\n')
    python.chmod(0o755)
    (tmp_path / "models" / "served").mkdir(parents=True)
    settings = {
        "DEVICE": "cuda",
        "PY": str(python),
        "VLLM_PY": str(python),
        "SHARED": str(tmp_path),
        "VLLM_GPUS": "2,3",
    }
    assert stack("vllm", tmp_path / "none", **settings).stdout.startswith("gpus=2,3 lora=True -m vllm")
    assert stack("rollout", tmp_path / "none", **settings).stdout.startswith("gpus= ")
    assert "\ngpus=1 lora=True grpo_train.py" in stack("train", tmp_path / "none", **settings).stdout
    by_compose = stack("train", tmp_path / "none", CUDA_VISIBLE_DEVICES="5", **settings).stdout
    assert "\ngpus=5 " in by_compose


def test_a_gpu_that_is_not_there_is_told_before_anything_is_made(tmp_path):
    done = stack("prepare", tmp_path / "none", DEVICE="cuda", TRAIN_GPUS="99", SHARED=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("error: there is no GPU 99 (TRAIN_GPUS); on one GPU set TRAIN_GPUS=0, VLLM_GPUS=0")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_verb_is_told(tmp_path):
    done = stack("fly", tmp_path / "none")
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "usage")


def test_every_knob_is_explained():
    """What scripts and compose files read stands in .env.example, and nothing else does."""
    import re

    script = (ROOT / "scripts" / "stack.sh").read_text()
    compose = (ROOT / "docker-compose.yml").read_text() + (ROOT / "docker-compose.cpu.yml").read_text()
    read = set(re.findall(r"\$\{([A-Z][A-Z0-9_]+):?[-?+]", script + compose))
    explained = set(re.findall(r"^(?:# )?([A-Z][A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    own = {
        "PY",
        "VLLM_PY",
        "CUDA_VISIBLE_DEVICES",
        "DEVICE",
        "SHARED",
        "ENV_FILE",
        "OMP_WAIT_POLICY",
    }  # set by images and compose themselves
    assert read - own == explained
