"""cluster/: which part of a run each node takes.

What real nodes do under Slurm is in tests/integration/test_slurm.py.
"""

import re
import subprocess

import pytest
import yaml

from tests import ROOT
from tests.stand_ins import machine_with

SKY = yaml.safe_load((ROOT / "cluster" / "sky.yaml").read_text())


@pytest.fixture
def node(tmp_path):
    """node(...): what a node with so many GPUs says and writes; Python and nvidia-smi are stand-ins."""
    python, shared = str(tmp_path / "bin" / "python"), tmp_path / "shared"
    (shared / "models" / "served").mkdir(parents=True)

    def node(*command, cards=0, **settings):
        env = machine_with(tmp_path / "bin", cards, sleep='exec /bin/sleep "${PAUSE:-$1}"') | {
            "HOME": str(tmp_path), "PY": python, "VLLM_PY": python, "SHARED": str(shared),
            "ENV_FILE": str(tmp_path / "env"),
        }  # fmt: skip
        del env["DEVICE"]
        command = command or ("cluster/node.sh",)
        done = subprocess.run(command, cwd=ROOT, env=env | settings, capture_output=True, text=True, timeout=250)
        found = (shared / "logs" / settings.get("RUN", "stack")).glob("*.log")
        logs = {path.name.split("-")[0]: path.read_text() for path in found}
        return done, logs

    return node


def line_with(text, what):
    [line] = [line for line in text.splitlines() if what in line]
    return line


def test_the_first_nodes_train_together_on_all_their_gpus(node):
    done, logs = node(NODE_RANK="0", TRAIN_NODES="2", NODES="3", TRAIN_ADDRESS="127.0.0.1", SLURM_JOB_ID="7", cards=2)
    assert done.returncode == 0, done.stderr
    assert set(logs) == {"train"}
    prepared = logs["train"].count("data_prep.py")
    assert prepared  # since it is the first
    train = line_with(logs["train"], "grpo_train.py")
    assert re.search(r"interface=[\w.-]+ .*gpus=0,1 ", train)  # whichever leads out of here
    assert (
        "-m torch.distributed.run --nnodes 2 --node-rank 0 --rdzv-backend static --rdzv-endpoint 127.0.0.1:29507"
        " --nproc-per-node 2 grpo_train.py " in train
    )
    assert "--sharding zero3" in train
    done, logs = node(NODE_RANK="1", TRAIN_NODES="2", NODES="3", TRAIN_ADDRESS="127.0.0.1", TRAIN_PORT="5", cards=2)
    assert logs["train"].count("data_prep.py") == prepared  # no more of it
    assert "--node-rank 1 --rdzv-backend static --rdzv-endpoint 127.0.0.1:5 " in logs["train"]


def test_every_other_node_plays_beside_a_server_for_each_of_its_gpus(node):
    node(NODE_RANK="0", cards=2)
    done, logs = node(NODE_RANK="1", VLLM_API_KEY="k", cards=2)
    assert done.returncode == 0, done.stderr
    assert set(logs) == {"train", "rollout", "vllm0", "vllm1"}
    for card in "01":
        assert f"gpus={card} " in line_with(logs[f"vllm{card}"], "gpus=")
        assert f"--port 810{card} " in logs[f"vllm{card}"]
    worker = line_with(logs["rollout"], "grpo_rollout.py")
    assert "--urls http://127.0.0.1:8100 http://127.0.0.1:8101 --batch" in worker
    assert "gpus= " in worker
    _, logs = node(NODE_RANK="1", CUDA_VISIBLE_DEVICES="1", RUN="lent", cards=2)  # the scheduler lends one of two
    assert set(logs) == {"rollout", "vllm1"}
    assert "--urls http://127.0.0.1:8100 --batch" in logs["rollout"]


def test_without_a_gpu_a_worker_may_sample_by_itself(node):
    _, logs = node(NODE_RANK="3", TRAIN_NODES="0", NODES="4", ENGINE="local")
    assert set(logs) == {"rollout"}
    assert "--engine local" in line_with(logs["rollout"], "grpo_rollout.py")


def test_a_worker_starts_again_but_not_for_ever(node):
    done, logs = node(NODE_RANK="1", ENGINE="local", WORKER_STATUS="1", PAUSE="0.01")
    assert done.returncode == 1
    assert "ended with an error five times in a row; see " in done.stderr
    assert logs["rollout"].count("grpo_rollout.py") == 5


# SkyPilot


@pytest.mark.parametrize(("rank", "cards", "part"), [("0", "1", "train"), ("1", "1", "rollout"), ("0", "0", "train")])
def test_skypilots_nodes_take_the_same_parts(node, rank, cards, part):
    told = {
        "SKYPILOT_NODE_RANK": rank, "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2",
        "SKYPILOT_NUM_GPUS_PER_NODE": cards, "SKYPILOT_TASK_ID": "one",
    }  # fmt: skip
    if rank == "1":
        node("bash", "-c", SKY["run"], cards=int(cards), **told | {"SKYPILOT_NODE_RANK": "0"})
    done, logs = node("bash", "-c", SKY["run"], cards=int(cards), **told, TRAIN_NODES=str(SKY["envs"]["TRAIN_NODES"]))
    assert done.returncode == 0, done.stderr
    assert f"grpo_{part}.py" in logs[part]
