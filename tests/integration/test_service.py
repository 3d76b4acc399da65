"""A trainer that starts a real vLLM server of its own."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from forage.agent.episode import episode_files, read_episodes
from forage.policy.adapters import adapter_path, publish_adapter, versions
from forage.policy.card import PolicyCard, write_policy_card
from tests import ROOT
from tests.tiny import make_data

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model_folder):
    """The tiny data, and a real policy, as vLLM serves no random one of another shape."""
    folder = tmp_path_factory.mktemp("service")
    make_data(folder / "data")
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    policy = get_peft_model(base, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    policy.peft_config["default"].base_model_name_or_path = str(model_folder)
    publish_adapter(policy, folder / "smollm2", 0)
    card = PolicyCard(folder / "smollm2", str(model_folder), str(model_folder), False, "float32")
    write_policy_card(card, folder / "smollm2")
    return folder


def start(folder, run):
    command = [
        sys.executable, "-m", "tests.tiny_training", "train", "--data", folder / "data", "--policy", folder / "smollm2",
        "--run-dir", folder / run, *"--mode sparse --max-turn-tokens 12 --max-turns 2 --batch-size 3 --num-rollouts 4 "
        "--engine vllm --max-steps 2 --learning-rate 1e-3 --eval-every 0 --on-collapse warn".split(),
    ]  # fmt: skip
    log = (folder / f"{run}.log").open("a")
    return subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def in_session(number):
    """Processes of a session, which a server has of its own."""
    listed = subprocess.run(["ps", "-o", "pid=", "-s", str(number)], capture_output=True, text=True)
    return listed.stdout.split()


@pytest.mark.timeout(1200)
def test_one_command_starts_its_own_server_and_leaves_none_when_it_is_killed(vllm_environment, folder):
    trainer = start(folder, "killed")
    episodes = folder / "killed" / "episodes"
    while not list(episodes.glob("*/*.jsonl")) and trainer.poll() is None:
        time.sleep(0.2)
    [server] = map(int, Path(f"/proc/{trainer.pid}/task/{trainer.pid}/children").read_text().split())
    assert os.getsid(server) == server
    assert len(in_session(server)) > 1  # the server and its engine
    time.sleep(random.uniform(0, 5))
    trainer.kill()
    assert trainer.wait() == -signal.SIGKILL, (folder / "killed.log").read_text()[-3000:]
    deadline = time.monotonic() + 60
    while in_session(server) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not in_session(server)

    for run in ("killed", "whole"):
        done = start(folder, run)
        assert done.wait() == 0, (folder / f"{run}.log").read_text()[-3000:]
        assert versions(folder / run) == [0, 1, 2]
    played = {run: sampled(folder / run) for run in ("killed", "whole")}
    assert played["killed"] == played["whole"]
    assert len(played["whole"]) == 24
    before, resumed, whole = (weights(folder / run, v) for run, v in (("whole", 1), ("killed", 2), ("whole", 2)))
    # A server rounds by what it batches, and those that were in flight were batched otherwise.
    assert (resumed - whole).abs().mean() < 0.01 * (whole - before).abs().mean()


def weights(run, version):
    loaded = load_file(adapter_path(run, version) / "adapter_model.safetensors")
    return torch.cat([loaded[name].flatten() for name in sorted(loaded)])


def sampled(run):
    """The tokens of each episode, by its step and id."""
    files = [path for step in (0, 1) for path in episode_files(run / "episodes" / f"{step:06d}")]
    return {(path.parent.name, each.id): each.ids for path in files for each in read_episodes(path)}
