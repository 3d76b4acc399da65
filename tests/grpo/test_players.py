"""Steps and their episodes: after a rollback nothing counts that a discarded adapter played ahead."""

import asyncio
from dataclasses import replace

import pytest

from forage.agent.episode import read_episodes
from forage.grpo import players, reporting
from forage.grpo.learner import Learner
from forage.grpo.options import GuardOptions
from forage.grpo.players import Play
from forage.policy.adapters import sampled_by
from forage.rollout.plans import Played, open_plans
from forage.rollout.rollout import load_newest, open_rollout, play_plan
from forage.runs.stats import read_stats
from tests.factories import EPISODE
from tests.tiny_training import adapter_bytes, stats_of, tiny_options, train


def by(version, plan):
    """A plan's episodes, played with this adapter."""
    return [
        replace(EPISODE, id=f"{name}/{n}", question_id=name, adapter=f"run-v{version:06d}", reward=n)
        for name in plan.questions for n in range(plan.num_rollouts)
    ]  # fmt: skip


class PlayingAhead(Play):
    """Plays each plan, and then what a worker that is one step ahead would play with the same adapter."""

    def __init__(self, options, settings, make_rewards, questions, embedder):
        super().__init__(options.run_dir)
        self.opened = open_rollout(options.rollout, settings, make_rewards, questions, embedder)
        self.runner = asyncio.Runner()
        self.rollout = self.runner.run(self.opened.__aenter__())

    def play(self, plan, phases):
        return self.runner.run(self.play_both(plan))

    async def play_both(self, plan):
        await load_newest(self.rollout, self.run_dir)
        await play_plan(self.rollout, self.run_dir, plan, "trainer")
        for other in open_plans(self.run_dir):
            if other.version > plan.version:
                await play_plan(self.rollout, self.run_dir, other, "worker")
        return Played(self.run_dir, plan).gathered()

    def close(self):
        self.runner.run(self.opened.__aexit__(None, None, None))
        self.runner.close()


def test_a_run_that_rolled_back_learns_from_restored_adapters_only(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(players, "open_play", PlayingAhead)
    monkeypatch.setattr(reporting, "MIN_ENTROPY", 100.0)  # always a collapse
    monkeypatch.setattr(reporting, "WINDOW", 2)
    guard = GuardOptions(on_collapse="rollback", rollback_steps=1)
    options = tiny_options(
        tiny, tmp_path / "run", eval_every=0, max_steps=4, guard=guard, rollouts="service", max_staleness=1
    )
    train(options)
    stats = read_stats(options.run_dir)
    assert "went back to adapter v000000" in stats[1].notes[0]
    assert adapter_bytes(options.run_dir, 2) == adapter_bytes(options.run_dir, 0)
    played = list(read_episodes(options.run_dir / "episodes" / "000002" / "worker.jsonl"))
    assert {sampled_by(episode.adapter)[0] for episode in played} == {1}  # ahead, by the collapsed policy
    learnt = read_episodes(options.run_dir / "episodes" / "000002" / "trainer.jsonl")
    learnt = {episode.id: episode for episode in learnt}
    assert {sampled_by(episode.adapter)[0] for episode in learnt.values()} == {2}
    assert [row.adapter for row in stats] == ["v000000", "v000000", "v000002", "v000002"]
    assert sorted(stats[2].rewards["even"]) == sorted(episode.rewards["even"] for episode in learnt.values())
    assert stats[2].episodes["count"] == 12

    # Killed right before the rollback's checkpoint, with plans and episodes of the next step, it comes to the same.
    killed, real = replace(options, run_dir=tmp_path / "killed" / "run"), Learner.save

    def save(self, state, step, extra):
        if step == 2:
            raise KeyboardInterrupt
        real(self, state, step, extra)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "save", save)
        with pytest.raises(KeyboardInterrupt):
            train(killed)
    assert [plan.name for plan in open_plans(killed.run_dir)] == ["000001", "000002"]
    train(killed)
    assert stats_of(killed.run_dir) == stats_of(options.run_dir)
