"""scripts/stack.sh: what it runs follows from .env and the environment, and no line of .env is ever run."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


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
    own = {"PY", "DEVICE", "SHARED", "ENV_FILE", "VLLM_URLS", "OMP_WAIT_POLICY"}  # set by images and compose themselves
    assert read - own == explained
