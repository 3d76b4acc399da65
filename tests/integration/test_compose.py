"""The stack in real containers: it trains under DeepSpeed, and outlives the death of each of its containers."""

import json
import os
import re
import secrets
import signal
import time
from collections import Counter

import pytest

from forage.agent.episode import episode_files, read_episodes
from forage.machine import has_bf16
from forage.policy.adapters import sampled_by, versions
from forage.runs.stats import read_stats
from tests.containers import docker, inspected, lent_wheels
from tests.integration.agreement import mismatch_bound
from tests.ports import free_port

pytestmark = [pytest.mark.compose, pytest.mark.timeout(3600)]
PROJECT = "grpo-test"
STEPS, QUESTIONS, SAMPLES = 7, 2, 4
# The stack computes in bf16 where the processor does. Half as much again, since a step has few tokens.
MISMATCH = 1.5 * mismatch_bound("bfloat16" if has_bf16("cpu") else "float32")


class Stack:
    """The stack as one compose project."""

    def __init__(self, folder):
        self.key = secrets.token_urlsafe(24)
        port = free_port()
        self.env_file = folder / "env"
        settings = {
            "VLLM_API_KEY": self.key, "VLLM_PORT": port, "DATASET": "sample", "WARM_STEPS": 8, "LORA_RANK": 8,
            "MAX_STEPS": STEPS, "BATCH_SIZE": QUESTIONS, "NUM_ROLLOUTS": SAMPLES, "MAX_TURNS": 2,
            "MAX_TURN_TOKENS": 64, "MAX_TOKENS": 1024, "MAX_STALENESS": 0, "KV_GIB": 1, "SHARDING": "zero3",
            "WARM_ARGS": "--batch-size 2 --eval-every 8 --answer-tokens 24 --num-demonstrations 40",
            "TRAIN_ARGS": "--on-collapse warn",
            "ROLLOUT_ARGS": "--concurrency 1",  # so that the first of two workers does not take a whole step
        }  # fmt: skip
        self.settings = settings
        self.set()

    def set(self, **more):
        """What .env says from now on."""
        self.settings |= more
        self.env_file.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))

    def compose(self, *arguments, check=True):
        return docker(
            "compose", "-p", PROJECT, "--env-file", self.env_file, "-f", "docker-compose.yml", "-f",
            "docker-compose.cpu.yml", *arguments, check=check, env={"ENV_FILE": str(self.env_file)},
        )  # fmt: skip

    def containers(self, service):
        return self.compose("ps", "--all", "--quiet", service).stdout.split()

    def kill(self, container):
        """SIGKILL from outside, as when memory runs out: `docker kill` would count as being stopped on purpose."""
        os.kill(int(inspected(container, ".State.Pid")), signal.SIGKILL)

    def fetch(self, target):
        docker("cp", f"{self.containers('train')[0]}:/shared/runs/stack", target)
        return target

    def wait_for_end(self, seconds=600):
        """Until training and workers have ended, without an error."""
        train = self.containers("train")[0]
        deadline = time.monotonic() + seconds
        while inspected(train, ".State.Status") != "exited":
            assert time.monotonic() < deadline, self.compose("logs", "--tail", "40").stdout
            time.sleep(2)
        assert inspected(train, ".State.ExitCode") == "0", self.compose("logs", "--tail", "40", "train").stdout
        for worker in self.containers("rollout"):  # they end with the run
            assert docker("wait", worker).stdout.strip() == "0"

    def steps(self):
        files = self.compose("exec", "-T", "rollout", "ls", "/shared/runs/stack", check=False).stdout
        return sum(name.startswith("training_stats_") for name in files.split())

    def wait_for_steps(self, count, seconds=900):
        deadline = time.monotonic() + seconds
        while self.steps() < count:
            assert time.monotonic() < deadline, f"no step {count}:\n{self.compose('logs', '--tail', '40').stdout}"
            time.sleep(2)
        print(f"{count} steps", flush=True)


@pytest.fixture(scope="module")
def stack(engine, tmp_path_factory):
    stack = Stack(tmp_path_factory.mktemp("stack"))
    with lent_wheels():
        stack.compose("build", "prepare", "vllm")
    yield stack
    stack.compose("down", "--volumes", "--timeout", "5", check=False)


@pytest.mark.timeout(3600)
def test_the_stack_trains_and_outlives_the_death_of_each_container(stack, tmp_path):
    stack.compose("up", "--detach", "--scale", "rollout=2")
    stack.wait_for_steps(3)
    for done, service in ((3, "vllm"), (4, "rollout"), (5, "train")):
        killed = stack.containers(service)[0]
        stack.kill(killed)
        stack.wait_for_steps(done + 1)
        assert int(inspected(killed, ".RestartCount")) == 1, f"{service} was not started again"
    stack.wait_for_end()

    run = stack.fetch(tmp_path / "run")
    assert versions(run) == list(range(STEPS + 1))
    stats = read_stats(run)
    assert [(row.step, row.adapter) for row in stats] == [(step, f"v{step:06d}") for step in range(STEPS)]
    workers = set()
    for row in stats:
        files = episode_files(run / "episodes" / f"{row.step:06d}")
        workers |= {path.name.partition(".")[0] for path in files}
        episodes = [episode for path in files for episode in read_episodes(path)]
        twice = [name for name, count in Counter(episode.id for episode in episodes).items() if count > 1]
        assert not twice or row.step in (3, 4, 5)  # what a killed container had half done is played again
        assert row.episodes["count"] == QUESTIONS * SAMPLES  # none lost, none used twice
        assert {sampled_by(episode.adapter)[0] for episode in episodes} == {row.step}
    assert len(workers) == 2
    # The trainer's own log-probabilities are those of the server, so what it served was the adapter that was published.
    assert max(row.training.get("mismatch_mean_abs", 0) for row in stats) < MISMATCH
    assert max(row.training["grad_norm"] for row in stats) > 0

    # DeepSpeed's own word for it, from the process that trained, each time it was started.
    assert json.loads((run / "run.json").read_text())["options"]["sharding"] == "zero3"
    began = [line for line in stack.compose("logs", "train").stdout.splitlines() if "training by" in line]
    assert len(began) == 2  # it was killed once
    assert all(re.search(r"training by DeepSpeed 0\.19\.\d+ ZeRO-3, processes: 1$", line) for line in began)

    logs = stack.compose("logs").stdout
    for version in range(1, 4):
        assert f"stack-v{version:06d}" in stack.compose("logs", "vllm").stdout
    assert stack.key not in logs
    for image in ("grpo:cpu", "grpo-vllm:cpu"):
        assert stack.key not in docker("history", "--no-trunc", image).stdout
        assert inspected(image, ".Config.User") == "agent"


def test_a_server_that_is_up_asks_for_the_key_on_the_loopback_address_only(stack):
    server = stack.containers("vllm")[0]
    bound = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Ports}}", server).stdout)
    assert {address["HostIp"] for addresses in bound.values() for address in addresses or []} == {"127.0.0.1"}
    ask = "import urllib.request as u; u.urlopen('http://vllm:8100/v1/models')"
    refused = stack.compose("run", "--rm", "--no-deps", "-T", "rollout", "python", "-c", ask, check=False)
    assert "401" in refused.stderr
