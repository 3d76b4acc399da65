"""Training: GRPO's loop. Publish the adapter, play a step's episodes, compare and learn, write, repeat."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from forage.agent.episode import Episode, replace_episodes
from forage.agent.rewards import names_of_rewards
from forage.data.splits import Splits
from forage.errors import UserError
from forage.grpo.gain import Gains
from forage.grpo.learner import REFERENCE, Learner
from forage.grpo.options import TrainOptions
from forage.grpo.players import Play
from forage.grpo.reporting import Drawing, Reports, collect, fault_of, open_reports
from forage.grpo.resume import (
    Run,
    checkpoint_fields,
    evaluations_so_far,
    foreign,
    intact,
    open_run,
    plan_evaluation,
    put_episodes_right,
    put_right,
    tidy,
    write_plans,
)
from forage.grpo.served import check_served
from forage.grpo.sharding import ShardedLearner
from forage.grpo.teacher import Teacher
from forage.grpo.update import UpdateContext, prepare, update
from forage.metrics import bootstrapped
from forage.policy.adapters import adapter_path, versions, weights_digest, whole_digest
from forage.policy.logprobs import unsharable
from forage.policy.manifest import PolicyManifest
from forage.policy.policy import load_policy
from forage.processes import first_alone, is_first, join_processes, rank, world
from forage.rollout.agreement import RunManifest
from forage.rollout.plans import Plan, plan_path, write_plan
from forage.runs.run_folder import set_aside
from forage.runs.stats import StepStats, write_evaluations, write_stats
from forage.text import say

MAX_ROLLBACKS = 3  # after as many, the next sign of collapse stops the run


def train(
    options: TrainOptions,
    max_tokens: int,
    learner: Learner,
    play: Play,
    manifest: RunManifest,
    questions: Splits,
    teacher: Teacher | None = None,
    gains: Gains | None = None,
) -> None:
    """Train from the last checkpoint to the last step. Every process runs this; `first_alone` is for one to do."""
    run, run_dir = open_run(options, learner, manifest, questions), options.run_dir
    # The run folder is put right before anything is published in it, and its episodes once the adapter is.
    first_alone(put_right, run)
    publish(learner, run)
    first_alone(put_episodes_right, run)
    first_alone(tidy, options, run.step)
    shared = options.sequence_parallel == 1 and not unsharable(learner.policy.config)
    context = UpdateContext(options.update, options.rollout.temperature, shared, run.phases, teacher)

    def measured(gains: Gains, plan: Plan, episodes: list[Episode]) -> list[Episode]:
        """The episodes with the rewards that only the policy can tell, in their files too."""
        with run.phases("gain"):
            found = gains.measured(learner, episodes, context)
            first_alone(replace_episodes, run_dir / "episodes" / plan.name, found)
        return found

    measure = partial(measured, gains) if gains else None
    with open_reports(run, first=is_first()) as reports:
        while True:
            # Everything before the checkpoint can be done again with the same result, so a killed run resumes exactly.
            publish(learner, run)
            if run.step < options.max_steps:
                plan = first_alone(write_plans, run)
            play.wake(run.phases)
            evaluate(run, play, measure)
            if run.step >= options.max_steps:
                break
            with run.phases("rollout"):
                episodes = play.play(plan, run.phases)
                first_alone(refuse_foreign, run, plan, episodes)
            play.sleep(run.phases)
            check_served(run, learner, episodes, context, plan.name)
            replaces_flat = options.replace_flat > 0
            episodes = measure(plan, episodes) if measure else episodes
            batch = prepare(episodes, options.update, manifest.weights, max_tokens, replaces_flat=replaces_flat)
            # Makes dropout the same however often the run was killed, whether its episodes were played or read again.
            torch.manual_seed((options.rollout.seed * 1_000_003 + run.step) * world() + rank())
            figures = update(learner, batch, context)
            stats = guard(run, learner, collect(run, plan, batch, figures))
            run.step, run.history = run.step + 1, [*run.history, stats]
            first_alone(write_stats, run_dir, stats)
            with run.phases("checkpoint"):
                learner.save(run_dir / "state", run.step, checkpoint_fields(run))
            first_alone(end_step, run, plan, reports)
        first_alone(tidy, options, run.step)  # the last evaluation came after the last step
        first_alone(reports.end, play)


def end_step(run: Run, plan: Plan, reports: Reports) -> None:
    plan_path(run.options.run_dir, plan.name).unlink(missing_ok=True)
    tidy(run.options, run.step)
    reports.step(run.history[-1])


def publish(learner: Learner, run: Run) -> None:
    """Publish the step's adapter. One that a killed run left must be what would be published; else it goes aside."""
    run_dir, path = run.options.run_dir, adapter_path(run.options.run_dir, run.step)
    if path.name in run.digests:
        return
    with run.phases("publish"):
        if first_alone(path.exists) and not published_same(learner, path, run.step):
            why = f"other weights than this run comes to at step {run.step}"
            first_alone(set_aside, run_dir, [path], why)
        if not first_alone(path.exists):
            learner.publish(run_dir, run.step)
        run.digests[path.name] = first_alone(weights_digest, path)


def published_same(learner: Learner, path: Path, version: int) -> bool:
    """Whether the adapter that is there is whole, and has the weights that would be published now."""
    scratch = path.parents[1] / "state" / ".published"
    try:
        again = learner.publish(scratch, version)
        return first_alone(lambda: whole_digest(path) == whole_digest(again))
    finally:
        if is_first():
            shutil.rmtree(scratch, ignore_errors=True)


def refuse_foreign(run: Run, plan: Plan, played: list[Episode]) -> None:
    """Nothing is learnt from episodes of adapters that this run did not publish."""
    if names := foreign(run, played):
        raise UserError(
            f"{run.options.run_dir / 'episodes' / plan.name} holds episodes of {names[0]}, which is no adapter of this "
            "run; stop what plays there, then re-run the same command"
        )


def evaluate(run: Run, play: Play, measure: Callable[[Plan, list[Episode]], list[Episode]] | None = None) -> None:
    """Play the held-out questions if this step is due for it, and add the result to evaluations.json."""
    options = run.options
    due = options.eval_every and (run.step % options.eval_every == 0 or run.step == options.max_steps)
    # The first process decides: when another one looks, the file may already hold what is to be played now.
    if not due or first_alone(lambda: run.step in evaluations_so_far(run)):
        return
    plan = plan_evaluation(run)
    first_alone(write_plan, options.run_dir, plan)
    first_alone(say, f"v{run.step:06d} plays {len(plan.questions)} held-out questions")
    with run.phases("evaluation"):
        episodes = play.play(plan, run.phases)
        first_alone(refuse_foreign, run, plan, episodes)
    if measure:
        play.sleep(run.phases)
        episodes = measure(plan, episodes)
        play.wake(run.phases)
    first_alone(note_evaluation, run, plan, episodes)


def note_evaluation(run: Run, plan: Plan, episodes: Sequence[Episode]) -> None:
    """Add the held-out rewards to evaluations.json, and print them."""
    run_dir, known = run.options.run_dir, evaluations_so_far(run)
    plan_path(run_dir, plan.name).unlink(missing_ok=True)
    known[run.step] = {"overall": bootstrapped([episode.reward for episode in episodes])} | {
        name: bootstrapped([episode.rewards[name] for episode in episodes if name in episode.rewards])
        for name in names_of_rewards(episodes)
    }
    write_evaluations(run_dir, known)
    having = Counter(name for episode in episodes for name in episode.rewards)  # a judge may be at its bound
    partly = {name: f" ({count} of them)" for name, count in having.items() if count < len(episodes)}
    means = ", ".join(f"{name} {of['mean']:.3f}{partly.get(name, '')}" for name, of in known[run.step].items())
    say(f"v{run.step:06d} on {len(episodes)} held-out questions: {means}")


def open_learner(options: TrainOptions, policy_manifest: PolicyManifest, start: Path) -> Learner:
    """The policy and its optimizer: plain in this process, or sharded, across all processes that were started."""
    shared_out = world() > 1 or options.sharding != "none"
    if shared_out:
        join_processes()
    # A model that is to be sharded must not be whole on every GPU first.
    policy = load_policy(policy_manifest, start, device="cpu" if options.sharding in ("zero3", "fsdp2") else "auto")
    policy.train()  # transformers checkpoints activations in training mode only
    if options.update.memory.gradient_checkpointing:
        policy.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    learner = (
        ShardedLearner(policy, options.sharding, options.sequence_parallel, options.offload)
        if shared_out else Learner(policy)
    )  # fmt: skip
    if isinstance(learner, ShardedLearner) and is_first():
        say(f"training by {learner.strategy.title}, processes: {world()}")
    if options.update.loss.beta:
        learner.keep(REFERENCE, start)
    return learner


def guard(run: Run, learner: Learner, stats: StepStats) -> StepStats:
    """On a collapse stop, go back to an older adapter, or note it, as --on-collapse says."""
    options, run_dir = run.options.guard, run.options.run_dir
    history = [past for past in (*run.history, stats) if past.step >= run.guarded_from]
    wrong = stats.notes[0] if stats.notes else fault_of(history)
    if not wrong:
        return stats
    if options.on_collapse == "stop" or run.rollbacks == MAX_ROLLBACKS:
        if run.history:
            first_alone(Drawing(run_dir).finish)  # so that the plots show what led up to it
        raise UserError(
            f"stopped at step {run.step}: {wrong}. The last adapter is {adapter_path(run_dir, run.step)}; "
            "put right what samples, if that is named; else lower --learning-rate, or continue with --on-collapse "
            "rollback or warn"
        )
    if options.on_collapse == "rollback":
        first = max(run.guarded_from, run.step - options.rollback_steps)  # never behind an earlier rollback
        back = min(version for version in versions(run_dir) if version >= first and intact(run, version))
        learner.load_adapter(adapter_path(run_dir, back))
        run.guarded_from, run.rollbacks = run.step + 1, run.rollbacks + 1
        wrong += f"; went back to adapter v{back:06d}"
    say(f"step {run.step}: {wrong}")
    return replace(stats, notes=[*stats.notes, wrong])
