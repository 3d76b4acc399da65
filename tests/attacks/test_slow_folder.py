"""Trainer and workers whose folder is slow: files appear late and in any order, clocks differ, machines vanish."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from forage.grpo.options import TrainOptions
from forage.grpo.resume import Run, foreign, tidy, write_plans
from forage.policy.adapters import publish_adapter, sampled_by, weights_digest
from forage.rollout.agreement import write_run
from forage.rollout.options import RolloutOptions
from forage.rollout.plans import Claims, Plan, Played, plan_path, write_plan
from forage.rollout.worker import FINISHED, play_plans
from tests.factories import EPISODE, MANIFEST
from tests.slow_folder import SlowFolder, run_virtually

STEPS = 4
HOUR = 3600.0


class Weights:
    """As much of a policy as publishing needs: one file of a few bytes, another at each step."""

    def __init__(self, text):
        self.text = text

    def save_pretrained(self, folder, **_):
        (Path(folder) / "adapter_model.safetensors").write_bytes(self.text * 50)
        (Path(folder) / "adapter_config.json").write_text("{}")


class Engine:
    """Loads whatever bytes it finds in the folder, as long as that takes."""

    adapter = "base"

    def __init__(self, draw):
        self.draw = draw

    async def load_adapter(self, name, folder):
        (folder / "adapter_config.json").read_text()
        await asyncio.sleep(self.draw.uniform(0, 5))
        self.weights = weights_digest(folder)
        self.adapter = name


class Rollout:
    """Plays nothing, but takes its time for it. Played twice, a question may have other rewards, or flat ones."""

    class Options:
        concurrent_episodes = 4

    options = Options()

    def __init__(self, draw, longest):
        self.draw, self.longest, self.engine = draw, longest, Engine(draw)

    async def play_group(self, plan, view, name):
        adapter, weights = self.engine.adapter, self.engine.weights
        await asyncio.sleep(self.draw.uniform(1, self.longest))
        high = self.draw.choice((0.0, 1.0))
        return [
            replace(EPISODE, id=f"{name}/{n}", question_id=name, reward=n * high, adapter=adapter,
                    answer=weights)
            for n in range(plan.num_rollouts)
        ]  # fmt: skip


class Schedule:
    """One run of a trainer and its workers, drawn from a seed."""

    def __init__(self, root, seed):
        self.draw = random.Random(seed)
        self.lawful = seed % 5 != 0
        self.folder = SlowFolder(root, self.draw, lawful=self.lawful)
        self.here = self.machine()
        self.staleness, self.longest, self.trained = self.draw.randrange(3), self.draw.choice((5, 40)), []
        rollout = RolloutOptions(policy=root / "policy", batch_size=self.draw.choice((3, 6)), num_rollouts=2)
        self.options = TrainOptions(
            rollout, run_dir=self.here.path, max_steps=STEPS, max_staleness=self.staleness, rollouts="service",
            replace_flat=self.draw.choice((0, 2)), keep_adapters=1,
        )  # fmt: skip

    def machine(self):
        return self.folder.machine(self.draw.uniform(-HOUR, HOUR))

    async def gather(self, plan):
        played = Played(self.here.path, plan)
        while (episodes := played.gathered()) is None:
            await asyncio.sleep(2)
        return episodes

    async def evaluate(self, run):
        plan = Plan(f"{run.step:06d}-eval", run.step, ("e0", "e1"), split="eval", num_rollouts=1, oldest=run.step)
        write_plan(self.here.path, plan)
        self.check(run, plan, await self.gather(plan), 0)
        plan_path(self.here.path, plan.name).unlink()

    async def train(self):
        """The order of forage/grpo/training.py, without a model."""
        questions = [f"q{number}" for number in range(9)]
        run = Run(self.options, 0, 0, 0, [], questions, [], MANIFEST)
        write_run(self.here.path, MANIFEST)
        while run.step < STEPS:
            path = publish_adapter(Weights(self.draw.randbytes(9)), self.here.path, run.step)
            run.digests[path.name] = weights_digest(path)
            plan = write_plans(run)
            if self.draw.random() < 0.3:
                await self.evaluate(run)
            self.check(run, plan, await self.gather(plan), self.staleness)
            await asyncio.sleep(self.draw.uniform(0, 30))
            run.step += 1
            if self.draw.random() < 0.3:
                run.guarded_from = run.step  # a rollback
            plan_path(self.here.path, plan.name).unlink()
            tidy(self.options, run.step)
        (self.here.path / FINISHED).touch()

    def check(self, run, plan, episodes, staleness):
        """All that was asked for, once, each from one adapter that is new enough and the one that was published."""
        assert not foreign(run, episodes)
        groups = {}
        for episode in episodes:
            groups.setdefault(episode.question_id, []).append(episode)
            version, digest = sampled_by(episode.adapter)
            assert version >= max(plan.oldest, run.step - staleness)
            assert episode.answer.startswith(digest)
            assert episode.answer == run.digests[f"v{version:06d}"], "other weights than were published"
        assert tuple(groups) == plan.wanted(groups)
        for group in groups.values():
            assert len(group) == plan.num_rollouts
            assert len({episode.adapter for episode in group}) == 1
        self.trained += [(plan.name, episode.id) for episode in episodes]

    def work(self, name, machine):
        claims = partial(Claims, create=self.folder.create(machine))
        return asyncio.create_task(
            play_plans(Rollout(self.draw, self.longest), machine.path, name, claims=claims, poll=5)
        )

    async def vanish(self, name):
        """A worker that is killed in the middle, and most often starts again, here or on another machine."""
        machines = [self.machine() for _ in range(2)]
        machine = machines[0]
        for _ in range(self.draw.randrange(4)):
            task = self.work(name, machine)
            try:
                await asyncio.sleep(self.draw.uniform(1, self.draw.choice((20, 150))))
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await asyncio.sleep(self.draw.uniform(0, self.draw.choice((5, 60))))
            if self.lawful and self.draw.random() < 0.5:
                machine = self.draw.choice(machines)

    async def run(self):
        tasks = [asyncio.create_task(self.vanish(name)) for name in "bc"[: self.draw.randint(1, 2)]]
        tasks += [self.work("a", self.machine()), asyncio.create_task(self.train())]
        try:
            async with asyncio.timeout(2 * HOUR):
                await asyncio.gather(*tasks[-2:])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_lost_or_trained_twice_or_stale_and_every_step_ends(tmp_path, seed):
    schedule = Schedule(tmp_path, seed)
    run_virtually(schedule.folder, schedule.run())
    assert set(Counter(schedule.trained).values()) == {1}
    assert schedule.folder.overwritten == []
    assert {name for name, _ in schedule.trained if "eval" not in name} == {f"{step:06d}" for step in range(STEPS)}
