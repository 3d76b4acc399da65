"""Trainer and workers as processes of their own beside a real vLLM server, one worker killed on the way; a trainer that
starts its own server; and an agent of the user's own that a server plays."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import grpo_rollout
from forage.agent.episode import episode_files, read_episodes
from forage.arguments import parse
from forage.extras.gateway.own_agent import recorded
from forage.grpo.options import TrainOptions
from forage.policy.adapters import adapter_path, publish_adapter, sampled_by, versions
from forage.policy.manifest import PolicyManifest, write_policy_manifest
from forage.runs.stats import read_stats
from tests import ROOT
from tests.integration.agreement import adapted
from tests.tiny import make_data
from tests.tiny_training import train

pytestmark = pytest.mark.vllm
STEPS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model_folder):
    """The tiny data, and a real policy, as vLLM serves no random one of another shape."""
    folder = tmp_path_factory.mktemp("service")
    make_data(folder / "data")
    publish_adapter(adapted(model_folder), folder / "smollm2", 0)
    manifest = PolicyManifest(folder / "smollm2", str(model_folder), str(model_folder), False, "float32")
    write_policy_manifest(manifest, folder / "smollm2")
    return folder


def arguments(folder, run):
    return [
        "--data", str(folder / "data"), "--policy", str(folder / "smollm2"), "--run-dir", str(folder / run),
        "--mode", "sparse", "--max-turn-tokens", "12", "--max-turns", "2", "--batch-size", "3", "--num-rollouts", "4",
    ]  # fmt: skip


def start(what, folder, name, *more, run="run"):
    command = [sys.executable, "-m", "tests.tiny_training", what, *arguments(folder, run), *more]
    return subprocess.Popen(command, cwd=ROOT, stdout=(folder / f"{name}.log").open("a"), stderr=subprocess.STDOUT)


def worker(folder, name, url):
    return start("play", folder, name, "--follow", "--worker", name, "--engine", "vllm", "--urls", url)  # fmt: skip


@pytest.mark.timeout(900)
def test_a_run_with_two_workers_of_which_one_is_killed(server, folder):
    url = server.url
    workers = [worker(folder, name, url) for name in ("a", "b")]
    trainer = start(
        "train", folder, "trainer", "--rollouts", "service", "--max-steps", str(STEPS), "--learning-rate", "1e-3",
        "--eval-every", "0", "--on-collapse", "warn", "--max-staleness", "1",
    )  # fmt: skip
    while not list((folder / "run" / "episodes").glob("*/a.jsonl")) and trainer.poll() is None:
        time.sleep(0.2)
    workers[0].send_signal(signal.SIGKILL)
    workers[0].wait()
    workers[0] = worker(folder, "a", url)
    assert trainer.wait() == 0, (folder / "trainer.log").read_text()[-3000:]
    for process, name in zip(workers, "ab", strict=True):  # they end with the run
        assert process.wait(timeout=300) == 0, (folder / f"{name}.log").read_text()[-3000:]

    assert versions(folder / "run") == list(range(STEPS + 1))
    stats = read_stats(folder / "run")
    assert [row.step for row in stats] == list(range(STEPS))
    for row in stats:
        files = episode_files(folder / "run" / "episodes" / f"{row.step:06d}")
        episodes = [episode for path in files for episode in read_episodes(path)]
        assert row.episodes["count"] == 12
        assert sum(row.workers.values()) == 12
        [(address, sampled)] = row.servers.items()
        assert (f"http://{address}", sampled) == (url, 12)
        assert max(Counter(episode.id for episode in episodes).values()) == 1
        assert len({episode.question_id for episode in episodes}) == 3
        # Within the bound, and the trainer's own log-probabilities agree where the adapter was the newest.
        played_by = {sampled_by(episode.adapter)[0] for episode in episodes}
        assert played_by <= {row.step, row.step - 1}
    assert stats[0].training["mismatch_mean_abs"] < 0.02
    assert {int(row.adapter[1:]) for row in stats} - {0}, "no later adapter was ever used"


ALONE = (
    "--engine", "vllm", "--max-steps", "2", "--learning-rate", "1e-3", "--eval-every", "0", "--on-collapse", "warn",
    "--num-rollouts", "2",
)  # fmt: skip


def in_session(number):
    """Processes of a session, which a server has of its own."""
    listed = subprocess.run(["ps", "-o", "pid=", "-s", str(number)], capture_output=True, text=True)
    return listed.stdout.split()


@pytest.mark.timeout(1200)
def test_one_command_starts_its_own_server_and_leaves_none_when_it_is_killed(server, folder):
    trainer = start("train", folder, "killed", *ALONE, run="killed")
    episodes = folder / "killed" / "episodes"
    while not list(episodes.glob("*/*.jsonl")) and trainer.poll() is None:
        time.sleep(0.2)
    [own] = map(int, Path(f"/proc/{trainer.pid}/task/{trainer.pid}/children").read_text().split())
    assert os.getsid(own) == own
    assert len(in_session(own)) > 1  # the server and its engine
    time.sleep(random.uniform(0, 5))
    trainer.kill()
    assert trainer.wait() == -signal.SIGKILL, (folder / "killed.log").read_text()[-3000:]
    deadline = time.monotonic() + 60
    while in_session(own) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not in_session(own)

    for run, served in (("killed", ()), ("whole", ("--urls", server.url))):  # another server says the same
        done = start("train", folder, run, *ALONE, *served, run=run)
        assert done.wait() == 0, (folder / f"{run}.log").read_text()[-3000:]
        assert versions(folder / run) == [0, 1, 2]
    played = {run: sampled(folder / run) for run in ("killed", "whole")}
    assert played["killed"] == played["whole"]
    assert len(played["whole"]) == 12
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


async def asks_twice(question, client, tools):
    messages = [{"role": "user", "content": question}]
    first = await client.chat.completions.create(model="policy", messages=messages, tools=tools.definitions)
    messages += [first.choices[0].message, {"role": "user", "content": await tools.search(question)}]
    reply = await client.chat.completions.create(model="policy", messages=messages, tools=tools.definitions)
    return reply.choices[0].message.content


@pytest.mark.timeout(900)
def test_an_agent_of_ones_own_is_recorded_as_the_trainer_scores_it(server, folder, monkeypatch):
    monkeypatch.setattr(grpo_rollout, "get_agent", lambda: recorded(asks_twice))
    flags = [*arguments(folder, "own"), *ALONE, "--urls", server.url]
    train(parse(TrainOptions, flags))
    stats = read_stats(folder / "own")
    for step, row in enumerate(stats):
        [path] = episode_files(folder / "own" / "episodes" / f"{step:06d}")
        episodes = list(read_episodes(path))
        assert len(episodes) == 6
        for episode in episodes:
            assert (len(episode.turns), episode.earlier) == (2, ())
            assert sampled_by(episode.adapter)[0] == step
        assert row.training["mismatch_mean_abs"] < 0.02  # a token told otherwise than it was sampled would show
        assert row.training["grad_norm"] > 0
