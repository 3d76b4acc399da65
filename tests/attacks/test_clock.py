"""The clock is set while a run goes on: nothing is lost, played twice, or hangs."""

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from forage.agent.episode import read_episodes
from forage.rollout.plans import Plan, Played
from forage.rollout.rollout import play_plan
from tests.factories import EPISODE
from tests.slow_folder import run_virtually

HOUR = 3600.0
QUESTIONS = tuple(f"q{number}" for number in range(12))


@pytest.fixture(params=["forward", "backward", "to and fro"])
def jumping(request, monkeypatch):
    """time.time jumps by an hour with every look."""
    real, steps = time.time, itertools.count(1)
    jump = {"forward": lambda n: n * HOUR, "backward": lambda n: -n * HOUR, "to and fro": lambda n: (-1) ** n * HOUR}
    monkeypatch.setattr(time, "time", lambda: real() + jump[request.param](next(steps)))


class SlowRollout:
    """As much of a rollout as play_plan needs; a question takes a moment, so that several workers share a plan."""

    class Options:
        concurrent_episodes = 4

    class Engine:
        adapter = "run-v000000"

    options, engine = Options(), Engine()

    def __init__(self):
        self.played = Counter()

    async def play_group(self, plan, view, name):
        self.played[name] += 1
        await asyncio.sleep(0.05)
        return [replace(EPISODE, id=f"{name}/{n}", question_id=name, reward=n / 2) for n in range(2)]


def shared(rollout, run_dir, workers="abc", lease=0.4):
    """On virtual time: on a slow machine a live worker's claim might expire before its next refresh."""
    plan = Plan("000000", 0, QUESTIONS, num_rollouts=2)

    async def run():
        playing = (play_plan(rollout, run_dir, plan, name, poll=0.01, lease=lease) for name in workers)
        await asyncio.wait_for(asyncio.gather(*playing), 60)

    run_virtually(SimpleNamespace(pass_on=lambda seconds: None), run())
    return Played(run_dir, plan)


def lines(played):
    return Counter(episode.id for path in played.folder.glob("*.jsonl") for episode in read_episodes(path))


@pytest.mark.usefixtures("jumping")
def test_a_plan_that_three_workers_share_while_the_clock_jumps(tmp_path):
    rollout = SlowRollout()
    played = shared(rollout, tmp_path)
    assert rollout.played == Counter(QUESTIONS)
    assert set(lines(played).values()) == {1}
    assert len(played.gathered()) == 2 * len(QUESTIONS)
