"""Stage 5: GRPO. Episodes, their advantages, an update, the next adapter; again.

    python grpo_train.py --data data --policy models/warm --run-dir runs/grpo                   plays episodes itself
    python grpo_train.py --data data --policy models/warm --run-dir runs/grpo --rollouts service    grpo_rollout.py does
    torchrun --nproc-per-node 8 grpo_train.py ... --sharding fsdp2                              on several GPUs

Reads: --data (of data_prep.py) and --policy (of sft_train.py or create_lora_model.py). Writes into --run-dir, which is
itself a policy folder that merge_lora.py reads: adapters/v000000, v000001, ... (the last one is the result), plans/ and
episodes/ (every episode that was ever trained on), training_stats_<step>.json, evaluations.json, rewards.png,
reward_distribution.png, training.png, report.html, config.json, code.diff, and state/. A killed run goes on where it
was when the same command is given again, and comes to the same.
"""

from __future__ import annotations

import asyncio
import math
import random
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from forage.agent.combination import MakeRewards
from forage.agent.episode import Episode
from forage.cli import run_script
from forage.data.records import read_answerable
from forage.errors import UserError, check_at_least_one, check_at_least_zero
from forage.grpo.guards import fault_of
from forage.grpo.guidance import Guide, open_guide
from forage.grpo.learner import Learner
from forage.grpo.options import GuardOptions, GuidanceOptions, UpdateOptions
from forage.grpo.sharding import (
    ShardedLearner,
    Sharding,
    check_sharding,
    join_processes,
    process_rank,
    started_processes,
)
from forage.grpo.update import Lessons, Pass, learning_rate, prepare, update
from forage.heartbeat import beat
from forage.policy.adapters import adapter_path, newest_adapter
from forage.policy.policy import PolicyCard, load_policy, read_policy_card, write_policy_card
from forage.rollout.options import RolloutOptions
from forage.rollout.plans import Plan, Played, plan_path, read_plan, write_plan
from forage.rollout.rollout import FINISHED, Rollout, load_newest, open_rollout, plan_of, play_plan
from forage.runs.plots import draw_plots, shown_episodes, write_report
from forage.runs.progress import Phases, TrainView
from forage.runs.run_folder import plain, run_folder
from forage.runs.stats import EpisodeFigures, StepStats, read_evaluations, read_stats, write_evaluations, write_stats
from forage.runs.trackers import Kind, Tracker, flatten, open_tracker
from forage.schedule import by_spread
from forage.statistics import bootstrapped
from grpo_rollout import get_reward_functions


@dataclass(frozen=True)
class Options:
    """What is trained, by what, for how long."""

    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    update: UpdateOptions = field(default_factory=UpdateOptions)
    guidance: GuidanceOptions = field(default_factory=GuidanceOptions)
    guard: GuardOptions = field(default_factory=GuardOptions)
    run_dir: Path = Path("runs/grpo")
    """The run folder; what an earlier start left there is gone on with."""
    max_steps: int = 100
    """Updates of the policy; may be raised when a run is gone on with."""
    replace_flat: int = 0
    """Questions of a step, at most, that are played in place of groups whose episodes are all rewarded alike."""
    pool: bool = False
    """Draw questions by how far apart their last group's rewards were, rather than in rounds."""
    rollouts: Literal["own", "service"] = "own"
    """Who plays the episodes: this process, or workers of grpo_rollout.py --follow on the same run folder."""
    max_staleness: int = 0
    """With --rollouts service: steps that workers may play ahead of the newest adapter, so that nobody waits; episodes
    of an older one are dropped."""
    sharding: Sharding = "none"
    """With several processes: what is cut into parts among them (grpo/sharding.py); none: each has a whole model."""
    sequence_parallel: int = 1
    """Processes that share the tokens of an episode, for episodes too long for one (Ulysses); not with zero3."""
    eval_every: int = 10
    """Steps between evaluations, which are also made before the first and after the last; 0 for none."""
    eval_questions: int = 32
    """Of eval.jsonl, the same each time, an episode each."""
    eval_temperature: float = 0.0
    """Of those episodes."""
    report_to: Kind = "none"
    """Where figures go besides the run folder."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        for part in (self.rollout, self.update, self.guidance, self.guard):
            part.check()
        check_sharding(self.sharding, self.sequence_parallel)
        check_at_least_one(self, "max_steps")
        check_at_least_zero(self, "replace_flat", "max_staleness", "eval_every", "eval_questions")
        margin, most = self.update.overlong_margin, self.rollout.limits.max_tokens
        if self.update.overlong == "punish" and not 0 < margin <= most:
            raise UserError(f"--overlong-margin {margin} must be at least 1 and at most --max-tokens {most}")
        if self.rollout.num_rollouts < 2 and self.update.advantage != "none":
            raise UserError("--num-rollouts 1 leaves nothing to compare an episode with; give at least 2")
        if self.rollout.sampling.temperature <= 0:
            raise UserError("--temperature 0 plays the same episode each time; training needs it above 0")
        if self.max_staleness and self.rollouts == "own":
            raise UserError("--max-staleness needs workers that play ahead: --rollouts service")

    @property
    def prompts_shared(self) -> bool:
        update, whole = self.update, self.sharding == "none" and self.sequence_parallel == 1
        return update.share_prompts and not update.gradient_checkpointing and whole


# What a run may be gone on with that is other than before.
FREE = (
    "max_steps", "report_to", "max_staleness", "sharding", "sequence_parallel", "update.token_budget",
    "update.gradient_checkpointing", "update.share_prompts", "update.learning_rate", "rollout.engine",
    "rollout.at_once", "rollout.server.urls", "rollout.server.patience", "rollout.server.timeout",
    *(f"guard.{item.name}" for item in fields(GuardOptions)),
)  # fmt: skip

Play = Callable[[Plan], list[Episode]]


def main(options: Options, rewards: MakeRewards = get_reward_functions) -> None:
    options.check()
    card = read_policy_card(options.rollout.policy)
    start = newest_adapter(options.rollout.policy)
    lead = process_rank() == 0  # the first process alone writes and plays; all learn
    with run_folder(options.run_dir, options, FREE) if lead else nullcontext():
        if lead:
            (options.run_dir / FINISHED).unlink(missing_ok=True)  # before a model is loaded: workers end where it is
            write_policy_card(card, options.run_dir)
        learner = open_learner(options, card, start)
        learner.same(None)
        with open_players(options, rewards, learner.rank) as play:
            train(options, learner, play)
        if lead:
            (options.run_dir / FINISHED).touch()


def open_learner(options: Options, card: PolicyCard, start: Path) -> Learner:
    """In this process alone, or, where a launcher started several, with them."""
    several = started_processes() > 1
    if several:
        join_processes()
    # What is cut into parts must not lie whole on every GPU before.
    policy = load_policy(card, start, device="cpu" if options.sharding in ("zero3", "fsdp2") else "auto")
    policy.train()  # only then activations are computed again
    if options.update.gradient_checkpointing:
        policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    learner = (
        ShardedLearner(policy, options.update.weight_decay, options.sharding, options.sequence_parallel) if several
        else Learner(policy, options.update.weight_decay)
    )  # fmt: skip
    if options.update.loss.beta:
        learner.keep_reference(start)
    return learner


def train(options: Options, learner: Learner, play: Play) -> None:
    """From what state/ holds to the last step."""
    run, run_dir, lead = open_run(options, learner), options.run_dir, learner.rank == 0
    rollout = options.rollout
    tracker = open_tracker(options.report_to if lead else "none", run_dir, run_dir.name, plain(options))
    with tracker, TrainView(options.max_steps, run.phases, run.history) as view:
        while True:
            # Everything up to the checkpoint can be done again, to the same end: so a killed run goes on.
            view.began(run.step)
            with run.phases("publish"):
                publish(learner, run_dir, run.step)
            with view.paused():  # a rollout has a view of its own
                played = learner.same(play_step(run, play) if lead else None)
            if played is None:
                break
            lessons = prepare(played.episodes, options.update, rollout.weights, rollout.limits.max_tokens)
            rate = learning_rate(run.step, options.update, options.max_steps)
            by = Pass(rate, rollout.sampling.temperature, options.prompts_shared, run.guide.at(run.step))
            # Dropout draws alike however often the run was killed, its episodes played again or found there.
            torch.manual_seed((rollout.seed * 1_000_003 + run.step) * learner.world + learner.rank)
            training = update(learner, lessons, options.update, by, run.phases)
            stats = guard(run, learner, collect(run, played, lessons, training))
            run.after(stats, lessons)
            if lead:
                write_stats(run_dir, stats)
            with run.phases("checkpoint"):
                learner.save(run_dir / "state", run.step, run.kept())
            if lead:
                plan_path(run_dir, played.plan.name).unlink(missing_ok=True)
                show(run, stats, played.episodes, tracker, view)
    if lead and run.history:
        draw_plots(run_dir, run.history)  # with the last evaluation
        report_end(run)


# The run


@dataclass
class Run:
    """Where a run is."""

    options: Options
    step: int
    spreads: dict[str, float]
    """By question, how far apart the rewards of its last group were."""
    guarded_from: int
    """Step from which the guards look at the run: the last rollback."""
    rollbacks: int
    history: list[StepStats]
    questions: list[str]
    eval_questions: list[str]
    guide: Guide
    phases: Phases = field(default_factory=Phases)

    def kept(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {"spreads": self.spreads, "guarded_from": self.guarded_from, "rollbacks": self.rollbacks}

    def after(self, stats: StepStats, lessons: Lessons) -> None:
        """One step on."""
        self.step += 1
        self.history.append(stats)
        for question, rewards in lessons.rewards_by_question().items():
            self.spreads[question] = float(np.std(rewards))


def open_run(options: Options, learner: Learner) -> Run:
    """As the last checkpoint left it."""
    step, kept = learner.load(options.run_dir / "state") or (0, {"spreads": {}, "guarded_from": 0, "rollbacks": 0})
    history = [stats for stats in read_stats(options.run_dir) if stats.step < step]
    train_questions = [question.id for question in read_answerable(options.rollout.data / "train.jsonl")]
    held_out = [question.id for question in read_answerable(options.rollout.data / "eval.jsonl")]
    chosen = random.Random(options.rollout.seed).sample(held_out, min(options.eval_questions, len(held_out)))
    if options.eval_every and not chosen:
        raise UserError(f"{options.rollout.data}/eval.jsonl has no question to evaluate on; give --eval-every 0")
    guide = open_guide(options.guidance, options.rollout.seed, train_questions)
    if step:
        print(f"going on from step {step}")
    return Run(options, step, **kept, history=history, questions=train_questions, eval_questions=chosen, guide=guide)


def publish(learner: Learner, run_dir: Path, version: int) -> None:
    if not learner.same(adapter_path(run_dir, version).exists()):
        learner.publish(run_dir, version)


def plan_step(run: Run, step: int) -> Plan:
    """A step's questions, in rounds or out of the pool, and spare ones for groups that turn out flat."""
    options, rollout = run.options, run.options.rollout
    plan = plan_of(rollout, run.questions, step)
    if options.pool:
        seed = f"{rollout.seed}/{step}/pool"
        plan = replace(plan, questions=tuple(by_spread(run.questions, run.spreads, rollout.batch_size, seed)))
    seed = f"{rollout.seed}/{step}/spare"
    spare = by_spread(run.questions, run.spreads, options.replace_flat, seed, without=plan.questions)
    return replace(plan, spare=tuple(spare))


# Episodes


@dataclass(frozen=True)
class PlayedStep:
    """What a step is made of."""

    plan: Plan
    episodes: list[Episode]
    stale: int
    """How many more there were, of adapters too old."""


def play_step(run: Run, play: Play) -> PlayedStep | None:
    """Plan, evaluate if it is due, and get the step's episodes; None after the last step."""
    options, plan = run.options, write_plans(run)
    evaluate(run, play)
    if plan is None:
        return None
    with run.phases("rollout"):
        episodes, stale = usable(play(plan), run.step, options.max_staleness)
    return PlayedStep(plan, episodes, stale)


def write_plans(run: Run) -> Plan | None:
    """Plans for this step and those that workers may play ahead; this step's, or None after the last."""
    options = run.options
    for step in range(run.step, min(run.step + options.max_staleness + 1, options.max_steps)):
        path = plan_path(options.run_dir, f"{step:06d}")
        if not path.exists():
            write_plan(options.run_dir, plan_step(run, step))
    path = plan_path(options.run_dir, f"{run.step:06d}")
    return read_plan(path) if run.step < options.max_steps else None


@contextmanager
def open_players(options: Options, rewards: MakeRewards, rank: int = 0) -> Iterator[Play]:
    """What gets a plan's episodes: by this process, or by workers."""
    if options.rollouts == "service" or rank:
        yield lambda plan: wait_for_workers(options.run_dir, plan)
        return
    with asyncio.Runner() as runner:  # one loop for all steps, as connections and tasks belong to theirs
        opened = open_rollout(options.rollout, rewards)
        rollout = runner.run(opened.__aenter__())
        try:
            yield lambda plan: runner.run(play_here(rollout, options.run_dir, plan))
        finally:
            runner.run(opened.__aexit__(None, None, None))


async def play_here(rollout: Rollout, run_dir: Path, plan: Plan) -> list[Episode]:
    played = Played(run_dir, plan)
    if played.missing():
        if rollout.exact:  # the rest of a plan would be sampled in other company, so with other rounding
            shutil.rmtree(played.folder, ignore_errors=True)
        await load_newest(rollout, run_dir)
        await play_plan(rollout, run_dir, plan, "trainer")
    return played.episodes()


def wait_for_workers(run_dir: Path, plan: Plan, poll: float = 0.5, say_every: float = 60) -> list[Episode]:
    played, said = Played(run_dir, plan), time.monotonic()
    while missing := played.missing():
        beat()
        time.sleep(poll)
        if time.monotonic() - said > say_every:
            said = time.monotonic()
            print(f"{plan.name}: waiting for workers to play {len(missing)} questions; is grpo_rollout.py running?")
    return played.episodes()


def usable(episodes: Sequence[Episode], step: int, max_staleness: int) -> tuple[list[Episode], int]:
    """Those that an adapter new enough sampled, and how many were too old."""
    fresh = [episode for episode in episodes if step - version_of(episode) <= max_staleness]
    return fresh, len(episodes) - len(fresh)


def version_of(episode: Episode) -> int:
    """Example: 7 for gout-v000007."""
    return int(episode.adapter.rpartition("-v")[2])


# What is told


def collect(run: Run, played: PlayedStep, lessons: Lessons, training: Mapping[str, float]) -> StepStats:
    episodes = lessons.episodes
    overall = [e.reward for e in episodes] if run.options.update.combine == "gdpo" else lessons.combined_N.tolist()
    rewards = {"overall": overall}
    rewards |= {name: [episode.rewards[name] for episode in episodes] for name in episodes[0].rewards}
    return StepStats(
        step=run.step,
        adapter=f"v{max(map(version_of, episodes)):06d}",
        rewards=rewards,
        groups={
            "total": len(lessons.rewards_by_question()),
            "flat": lessons.flat,
            "replaced": len(lessons.rewards_by_question().keys() - set(played.plan.questions)),
        },
        episodes=figures_of(episodes, played.stale),
        stops=dict(sorted(Counter(str(e.stop) for e in episodes).items())),
        faults=dict(sorted(Counter(fault for e in episodes for fault in e.faults).items())),
        training={name: value for name, value in training.items() if math.isfinite(value)},
        evaluation=read_evaluations(run.options.run_dir).get(run.step),
        notes=[f"{name} is {value}" for name, value in training.items() if not math.isfinite(value)],
        seconds=run.phases.take() | waited(episodes),
        memory_gib=peak_memory(),
    )


def waited(episodes: Sequence[Episode]) -> dict[str, float]:
    """Seconds that an episode waited for the engine and for searches, as a mean; both lie within the rollout."""
    names = ("generate", "search")
    return {name: sum(episode.seconds.get(name, 0.0) for episode in episodes) / len(episodes) for name in names}


def figures_of(episodes: Sequence[Episode], stale: int) -> EpisodeFigures:
    count = len(episodes)
    return {
        "count": count,
        "well_formed": sum(e.well_formed for e in episodes) / count,
        "searches": sum(len(e.searches) for e in episodes) / count,
        "turns": sum(len(e.turns) for e in episodes) / count,
        "sampled_tokens": sum(e.sampled for e in episodes) / count,
        "tokens": sum(len(e.ids) for e in episodes) / count,
        "stale": stale,
    }


def peak_memory() -> float:
    """GiB: of the GPU where there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def guard(run: Run, learner: Learner, stats: StepStats) -> StepStats:
    """Notice a collapse; stop, go back to an older adapter, or note it."""
    options = run.options.guard
    history = [past for past in (*run.history, stats) if past.step >= run.guarded_from]
    wrong = stats.notes[0] if stats.notes else fault_of(history, options)
    if not wrong:
        return stats
    if options.on_collapse == "stop" or run.rollbacks == options.most_rollbacks:
        raise UserError(
            f"stopped at step {run.step}: {wrong}. {adapter_path(run.options.run_dir, run.step)} is the last adapter; "
            "lower --learning-rate, or go on by --on-collapse rollback or warn"
        )
    if options.on_collapse == "rollback":
        back = max(run.guarded_from, run.step - options.rollback_steps)  # the rollback before was for good
        learner.load_adapter(adapter_path(run.options.run_dir, back))
        run.guarded_from, run.rollbacks = run.step + 1, run.rollbacks + 1
        wrong += f"; went back to adapter v{back:06d}"
    print(f"step {run.step}: {wrong}", flush=True)
    return replace(stats, notes=[*stats.notes, wrong])


def evaluate(run: Run, play: Play) -> None:
    """Play the held-out questions, if this adapter's turn has come; evaluations.json keeps what came of it."""
    options = run.options
    due = options.eval_every and (run.step % options.eval_every == 0 or run.step == options.max_steps)
    known = read_evaluations(options.run_dir)
    if not due or run.step in known:
        return
    rollout = options.rollout
    plan = Plan(
        f"{run.step:06d}-eval", run.step, tuple(run.eval_questions), split="eval", num_rollouts=1,
        temperature=options.eval_temperature, seed=rollout.seed,
    )  # fmt: skip
    write_plan(options.run_dir, plan)
    with run.phases("evaluation"):
        episodes = play(plan)
    plan_path(options.run_dir, plan.name).unlink(missing_ok=True)
    known[run.step] = {"overall": bootstrapped([episode.reward for episode in episodes])} | {
        name: bootstrapped([episode.rewards[name] for episode in episodes]) for name in episodes[0].rewards
    }
    write_evaluations(options.run_dir, known)
    means = ", ".join(f"{name} {interval['mean']:.3f}" for name, interval in known[run.step].items())
    print(f"v{run.step:06d} on {len(episodes)} held-out questions: {means}", flush=True)


def show(run: Run, stats: StepStats, episodes: Sequence[Episode], tracker: Tracker, view: TrainView) -> None:
    tracker.log(stats.step, flatten(stats))
    view.ended(stats)
    with run.phases("plots"):
        draw_plots(run.options.run_dir, run.history)
        write_report(run.options.run_dir, run.history, shown_episodes(episodes))


def report_end(run: Run) -> None:
    """The held-out rewards before and after."""
    known = read_evaluations(run.options.run_dir)
    print(f"{adapter_path(run.options.run_dir, run.step)} is the result of {run.step} steps")
    if len(known) > 1:
        first, last = known[min(known)], known[max(known)]
        print(f"{len(run.eval_questions)} held-out questions    before    after    (95 % interval)")
        for name, before in first.items():
            after = last[name]
            print(
                f"{name:25} {before['mean']:8.3f} {after['mean']:8.3f}    ({after['low']:.3f} to {after['high']:.3f})"
            )


if __name__ == "__main__":
    run_script(main, description=__doc__)
