"""Players: how the trainer gets a step's episodes, from its own rollout or from workers on the same run folder."""

from __future__ import annotations

import asyncio
import gc
import io
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from forage.agent.combination import MakeRewards, names_of_rewards
from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.engines.choice import settled, with_key
from forage.grpo.learner import Learner
from forage.grpo.options import TrainOptions
from forage.grpo.played_by import Figures, server_figures, worker_figures
from forage.grpo.provenance import check_sampled
from forage.grpo.run import Run
from forage.grpo.shares import SharedPlay
from forage.heartbeat import beat
from forage.policy.adapters import sampled_by
from forage.rollout.plans import Plan, Played, plan_of, plan_path, read_plan, write_plan
from forage.rollout.rollout import Rollout, open_rollout
from forage.rollout.worker import load_newest, play_plan
from forage.rollout.worker_name import TRAINER
from forage.runs.phases import Phases
from forage.runs.stats import read_evaluations, write_evaluations
from forage.schedule import by_spread
from forage.statistics import Interval, bootstrapped

Play = Callable[[Plan, Phases], list[Episode]]


@dataclass(frozen=True)
class PlayedStep:
    """A step's episodes."""

    plan: Plan
    episodes: list[Episode]
    stale: int
    """Number of other episodes, dropped because their adapter was too old."""
    workers: Figures
    """Who played how many of all of them, and how fast."""
    servers: Figures
    """Which servers sampled them."""


@contextmanager
def open_players(
    options: TrainOptions, settings: AgentSettings, make_rewards: MakeRewards, embedder: str, learner: Learner
) -> Iterator[Play]:
    """A function that returns a plan's episodes, played in this process, in all training processes or by workers."""
    if options.rollouts == "service":
        yield lambda plan, phases: wait_for_workers(options.run_dir, plan, phases)
        return
    lead = learner.rank == 0
    engine = learner.broadcast(settled(with_key(options.rollout.engine)) if lead else None)
    shares = options.share_rollouts and learner.world > 1 and engine.engine == "local"
    if not lead and not shares:
        yield lambda plan, phases: wait_for_workers(options.run_dir, plan, phases)
        return
    with asyncio.Runner() as runner:  # one event loop for all steps: connections and tasks can't move to another
        of_engine = replace(options.rollout, engine=engine)
        opened = open_rollout(of_engine, settings, make_rewards, embedder, sleeps=options.vllm_sleep)
        give_back_memory(options)
        with nullcontext() if lead else redirect_stdout(io.StringIO()):  # the first process says it for all
            rollout = runner.run(opened.__aenter__())
        try:
            yield SharedPlay(runner, rollout, options.run_dir, learner) if shares else OwnPlay(runner, rollout, options)
        finally:
            give_back_memory(options)
            runner.run(opened.__aexit__(None, None, None))


@dataclass(frozen=True)
class OwnPlay:
    """Plays plans in this process; with --vllm-sleep, the servers sleep between steps."""

    runner: asyncio.Runner
    rollout: Rollout
    options: TrainOptions

    def __call__(self, plan: Plan, phases: Phases) -> list[Episode]:
        return self.runner.run(play_here(self.rollout, self.options.run_dir, plan))

    def wake(self, phases: Phases) -> None:
        if self.options.vllm_sleep:
            with phases("wake"):
                give_back_memory(self.options)
                self.runner.run(self.rollout.engine.wake())

    def sleep(self, phases: Phases) -> None:
        if self.options.vllm_sleep:
            with phases("sleep"):
                self.runner.run(self.rollout.engine.sleep())


def give_back_memory(options: TrainOptions) -> None:
    """Leave the GPU all memory that this process has no use for now, as a server is about to wake there."""
    if options.vllm_sleep:
        if torch.cuda.is_available():
            gc.collect()  # takes a second, so not for nothing
        torch.cuda.empty_cache()


async def play_here(rollout: Rollout, run_dir: Path, plan: Plan) -> list[Episode]:
    played = Played(run_dir, plan)
    if played.missing():
        if rollout.engine.exact:  # half a plan would be sampled in different batches, so rounded differently
            shutil.rmtree(played.folder, ignore_errors=True)
            played = Played(run_dir, plan)
        await load_newest(rollout, run_dir)
        await play_plan(rollout, run_dir, plan, TRAINER)
    return played.episodes()


def wait_for_workers(run_dir: Path, plan: Plan, phases: Phases) -> list[Episode]:
    played = Played(run_dir, plan)
    if (episodes := played.gathered()) is not None:
        return episodes
    with phases("rollout_wait"):
        return wait_until_played(played)


def wait_until_played(played: Played, poll: float = 0.5, say_every: float = 60) -> list[Episode]:
    said = time.monotonic()
    while (episodes := played.gathered()) is None:
        beat()
        time.sleep(poll)
        if time.monotonic() - said > say_every:
            said, missing, name = time.monotonic(), len(played.missing()), played.plan.name
            print(f"{name}: waiting for workers to play {missing} questions; is grpo_rollout.py running?")
    return episodes


# A step


def next_step(run: Run, play: Play, *, lead: bool) -> PlayedStep | None:
    """In the first process the next step's episodes, or None after the last step. The others help it play, if they do
    so, and get None."""
    played = play_step(run, play) if lead else None
    if isinstance(play, SharedPlay):
        (play.end if lead else play.follow)()
    return played


def play_step(run: Run, play: Play) -> PlayedStep | None:
    """Plan, evaluate if that is due, and get the step's episodes; None after the last step."""
    options, plan = run.options, write_plans(run)
    if isinstance(play, OwnPlay):
        play.wake(run.phases)
    evaluate(run, play)
    if plan is None:
        return None
    with run.phases("rollout"):
        played = play(plan, run.phases)
        check_sampled(run, played)
        episodes, stale = usable(played, run.step, options.max_staleness)
    if isinstance(play, OwnPlay):
        play.sleep(run.phases)
    return PlayedStep(plan, episodes, stale, worker_figures(played), server_figures(played))


def write_plans(run: Run) -> Plan | None:
    """Write plans for this step and those that workers may play ahead; return this step's, or None after the last.

    After a rollback, plans that were written before it ask for episodes of newer adapters: what the discarded ones
    played ahead is played again.
    """
    options = run.options
    for step in range(run.step, min(run.step + options.max_staleness + 1, options.max_steps)):
        path = plan_path(options.run_dir, f"{step:06d}")
        if not path.exists():
            write_plan(options.run_dir, plan_step(run, step))
        elif (plan := read_plan(path)).oldest < run.guarded_from:
            write_plan(options.run_dir, replace(plan, oldest=run.guarded_from))
    path = plan_path(options.run_dir, f"{run.step:06d}")
    return read_plan(path) if run.step < options.max_steps else None


def plan_step(run: Run, step: int) -> Plan:
    """A step's questions, in rounds or from the pool, and spare ones to replace groups that turn out flat."""
    options, rollout = run.options, run.options.rollout
    plan = replace(
        plan_of(rollout, run.questions, step),
        oldest=run.guarded_from,
        credit=options.update.credit,
        word_cost=options.update.word_cost,
    )
    if (combine := options.update.combine) != "uniform":
        plan = replace(plan, combine=combine, weights=tuple(run.card.weights.items()))
    if options.pool:
        seed = f"{rollout.seed}/{step}/pool"
        plan = replace(plan, questions=tuple(by_spread(run.questions, run.spreads, rollout.batch_size, seed)))
    seed = f"{rollout.seed}/{step}/spare"
    spare = by_spread(run.questions, run.spreads, options.replace_flat, seed, without=plan.questions)
    return replace(plan, spare=tuple(spare))


def usable(episodes: Sequence[Episode], step: int, max_staleness: int) -> tuple[list[Episode], int]:
    """The episodes whose adapter is new enough, and how many were dropped."""
    fresh = [episode for episode in episodes if step - sampled_by(episode.adapter)[0] <= max_staleness]
    return fresh, len(episodes) - len(fresh)


def evaluate(run: Run, play: Play) -> None:
    """Play the held-out questions if this step is due for it, and add the result to evaluations.json."""
    options = run.options
    due = options.eval_every and (run.step % options.eval_every == 0 or run.step == options.max_steps)
    known = evaluations_so_far(run)
    if not due or run.step in known:
        return
    rollout = options.rollout
    plan = Plan(
        f"{run.step:06d}-eval", run.step, tuple(run.eval_questions), split="eval", num_rollouts=1,
        temperature=options.eval_temperature, seed=rollout.seed, oldest=run.step,
    )  # fmt: skip
    write_plan(options.run_dir, plan)
    with run.phases("evaluation"):
        episodes = play(plan, run.phases)
    check_sampled(run, episodes)
    plan_path(options.run_dir, plan.name).unlink(missing_ok=True)
    known[run.step] = {"overall": bootstrapped([episode.reward for episode in episodes])} | {
        name: bootstrapped([episode.rewards[name] for episode in episodes if name in episode.rewards])
        for name in names_of_rewards(episodes)
    }
    write_evaluations(options.run_dir, known)
    means = ", ".join(f"{name} {interval['mean']:.3f}" for name, interval in known[run.step].items())
    print(f"v{run.step:06d} on {len(episodes)} held-out questions: {means}", flush=True)


def evaluations_so_far(run: Run) -> dict[int, dict[str, Interval]]:
    """The evaluations by adapter version: those of evaluations.json, and those that the steps' statistics hold.

    Before the first checkpoint nothing shows whose evaluations.json it is, and the episodes of an evaluation are there
    to evaluate it again; so it is not read then.
    """
    told = {stats.step: dict(stats.evaluation) for stats in run.history if stats.evaluation}
    return told | (read_evaluations(run.options.run_dir) if run.step else {})
