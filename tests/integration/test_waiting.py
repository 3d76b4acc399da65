"""A real trainer and real workers, of which one side is slow: the figures say which, and add up."""

import subprocess
import sys

import pytest

from forage.agent.episode import episode_files, read_episodes
from forage.runs.stats import WAITS, read_stats
from forage.runs.waiting import advice, shares
from tests import ROOT
from tests.tiny_training import tiny_args

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 5
TINY = ("--engine", "local", "--mode", "sparse", "--max-turn-tokens", "12", "--max-turns", "2")


def start(folder, name, pause, *arguments):
    log = (folder / f"{name}.log").open("w")
    command = [sys.executable, "-m", "tests.paced_training", str(pause), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def run(tiny, folder, trainer=0.0, **workers):
    """(statistics, what the trainer printed) of a run with these pauses."""
    folder.mkdir(exist_ok=True)
    common = ("--data", str(tiny / "data"), "--policy", str(tiny / "policy"), "--run-dir", str(folder / "run"))
    playing = [
        start(
            folder, name, pause, "play", *common, *TINY, "--follow", "--worker", name, "--poll", "0.1",
            "--concurrency", "1", "--max-staleness", "1",
        ) for name, pause in workers.items()
    ]  # fmt: skip
    training = start(
        folder, "trainer", trainer, "train",
        *tiny_args(tiny, folder / "run", "--rollouts", "service", "--max-steps", str(STEPS), "--max-staleness", "1"),
        "--eval-every", "0",
    )  # fmt: skip
    said = folder / "trainer.log"
    assert training.wait() == 0, said.read_text()[-3000:]
    for name, process in zip(workers, playing, strict=True):
        assert process.wait() == 0, (folder / f"{name}.log").read_text()[-3000:]
    stats = read_stats(folder / "run")
    check_sums(folder / "run", stats)
    return stats, said.read_text()


def check_sums(run_dir, stats):
    assert [step.step for step in stats] == list(range(STEPS))
    for step in stats:
        files = episode_files(run_dir / "episodes" / f"{step.step:06d}")
        played = {path.name.split(".")[0]: list(read_episodes(path)) for path in files}
        assert {name: len(episodes) for name, episodes in played.items()} == {
            name: worker["episodes"] for name, worker in step.workers.items() if worker["episodes"]
        }
        assert sum(worker["episodes"] for worker in step.workers.values()) == step.episodes["count"] == 12
        for name, episodes in played.items():
            last = max(episode.seconds["into_plan"] for episode in episodes)
            rate = sum(episode.sampled for episode in episodes) / last
            assert step.workers[name]["tokens_per_s"] == pytest.approx(rate, abs=0.051)
        for kind in ("backpressure", "tail"):
            by_worker = sum(worker[kind] for worker in step.workers.values())
            assert step.seconds[kind] == pytest.approx(by_worker, abs=0.06 * len(step.workers))
        assert set(WAITS) <= step.seconds.keys()
        assert 0 <= step.seconds["rollout_wait"] <= step.seconds["rollout"]


def waited(stats, kind):
    return sum(step.seconds[kind] for step in stats[1:])  # in the first one the workers start


def test_a_slow_worker_makes_the_trainer_wait_and_a_second_one_less(tiny, tmp_path):
    """A step has three questions, and a worker here takes three seconds for each: nine, or six for two of them."""
    alone, said = run(tiny, tmp_path / "alone", a=3.0)
    found = shares(alone)
    assert found.trainer > 0.4, found
    assert found.workers < 0.2, found
    assert found.count == 1
    says = advice(found)
    assert says.startswith("the trainer waits")
    assert says.endswith("of the time for episodes: add a rollout worker")
    assert says in said.splitlines()
    assert says in (tmp_path / "alone" / "run" / "report.html").read_text()

    helped, _ = run(tiny, tmp_path / "helped", a=3.0, b=3.0)
    assert {name for step in helped for name in step.workers} == {"a", "b"}
    assert waited(helped, "rollout_wait") < waited(alone, "rollout_wait")
    # Three questions are not shared evenly: each step one of the two waits for the other's last one.
    assert waited(helped, "tail") > waited(alone, "tail") == 0


def test_a_slow_trainer_makes_a_worker_wait(tiny, tmp_path):
    """The trainer takes five seconds a step more than it would, and the worker is a step ahead."""
    stats, said = run(tiny, tmp_path, trainer=5.0, a=0.0)
    found = shares(stats)
    assert found.workers > 0.3, found
    assert found.trainer < 0.2, found
    assert waited(stats, "backpressure") > waited(stats, "tail") == 0
    assert advice(found).startswith("the worker waits")
    assert advice(found) in said.splitlines()
