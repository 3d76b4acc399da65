"""Training: GRPO's loop. Play a step's episodes, compute their advantages, update, publish the next adapter, repeat."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from forage.agent.options import AgentSettings
from forage.engines.choice import uses_servers, with_key
from forage.engines.sleeping import fall_asleep
from forage.errors import UserError
from forage.grpo.disk_use import check_room, disk_use
from forage.grpo.guards import fault_of
from forage.grpo.inventory import check_episodes, check_folder
from forage.grpo.learner import Learner
from forage.grpo.options import TrainOptions
from forage.grpo.players import Play, evaluations_so_far, next_step
from forage.grpo.provenance import check_adapter, same_weights
from forage.grpo.reporting import collect, report_end, show
from forage.grpo.retention import RECENT, check_pruning, tidy
from forage.grpo.run import Run, open_run
from forage.grpo.sharding import ShardedLearner
from forage.grpo.update import UpdateContext, learning_rate, prepare, update
from forage.policy.adapters import adapter_path, list_missing_contents, versions, weights_digest
from forage.policy.card import PolicyCard
from forage.policy.logprobs import has_windows
from forage.policy.policy import load_policy
from forage.policy.room import fitted
from forage.processes import join_processes, world
from forage.rollout.plans import plan_path
from forage.rollout.run_card import RunCard, adapter_of
from forage.runs import trackers
from forage.runs.browser import write_after_training
from forage.runs.progress import TrainView
from forage.runs.report import PlotSchedule, draw_report
from forage.runs.run_folder import plain
from forage.runs.stats import StepStats, write_evaluations, write_stats
from forage.runs.trackers import chosen, open_tracker


def train(options: TrainOptions, settings: AgentSettings, learner: Learner, play: Play, card: RunCard) -> None:
    """Train from the last checkpoint to the last step."""
    run, run_dir, lead = open_run(options, settings, learner, card), options.run_dir, learner.rank == 0
    rollout, schedule = options.rollout, PlotSchedule()
    check_start(run, learner)
    kind = chosen(options.report_to, trackers.AGENT_ORDER) if lead else "none"
    tracker = open_tracker(kind, run_dir, run_dir.name, plain(options))
    with tracker, TrainView(options.max_steps, run.phases, run.history) as view:
        shared = options.prompts_shared and not has_windows(learner.policy.config)
        while True:
            # Everything before the checkpoint can be done again with the same result, so a killed run resumes exactly.
            view.began(run.step)
            publish(learner, run)
            with view.paused():  # the rollout has a live view of its own
                played = learner.broadcast(next_step(run, play, lead=lead))
            if played is None:
                break
            batch = prepare(played.episodes, options.update, card.weights, settings.max_tokens)
            rate = learning_rate(run.step, options.update, options.max_steps)
            context = UpdateContext(
                options.update, rate, rollout.sampling.temperature, shared,
                run.guide.at(run.step, batch.best_means()), run.phases,
            )  # fmt: skip
            # Makes dropout the same however often the run was killed, whether its episodes were played or read again.
            torch.manual_seed((rollout.seed * 1_000_003 + run.step) * learner.world + learner.rank)
            training = update(learner, batch, context)
            stats = guard(run, learner, collect(run, played, batch, training))
            run.after(stats, batch)
            if lead:
                write_stats(run_dir, stats)
            with run.phases("checkpoint"):
                learner.save(run_dir / "state", run.step, run.checkpoint_fields())
            if lead:
                plan_path(run_dir, played.plan.name).unlink(missing_ok=True)
                tidy(options, run.step, recent=RECENT)
                show(run, stats, tracker, view, schedule)
    if lead and run.history:
        tidy(options, run.step)
        draw_report(run_dir, run.history)  # with the last evaluation
        report_end(run)
        write_after_training(run_dir)


def check_start(run: Run, learner: Learner) -> None:
    """Refuse a run folder that holds anything else than this run, or a disk without room for the rest of it."""
    options, lead = run.options, learner.rank == 0
    if lead:
        check_folder(run)
    publish(learner, run)
    if not lead:
        return
    list_missing_contents(options.run_dir)
    check_episodes(run)
    if evaluated := evaluations_so_far(run):
        write_evaluations(options.run_dir, evaluated)  # the file may have been deleted; pruning goes by it
    check_pruning(options)
    tidy(options, run.step)
    if run.step < options.max_steps:
        start = adapter_of(options.rollout.policy, run.card)
        check_room(disk_use(options, start, run.step, run.settings.max_tokens), options.run_dir)


def fit_memory(options: TrainOptions, card: PolicyCard, start: Path, settings: AgentSettings) -> TrainOptions:
    """The options with a micro-batch that fits the GPU, where they leave it open.

    Several processes stay as they are: their GPUs may have more or less room, but their micro-batches must agree.
    """
    if world() > 1:
        return options
    engine = options.rollout.engine
    if options.vllm_sleep:  # what counts is the room that a sleeping server leaves
        asyncio.run(fall_asleep(with_key(engine)))
    plays = options.rollouts == "own" and not uses_servers(engine)
    memory = fitted(options.update.memory, card, start, settings.max_tokens, plays=plays, offload=options.offload)
    return replace(options, update=replace(options.update, memory=memory))


def open_learner(options: TrainOptions, card: PolicyCard, start: Path) -> Learner:
    """The policy and its optimizer: plain in this process, or sharded, across all processes that were started."""
    shared_out = world() > 1 or options.sharding != "none"
    if shared_out:
        join_processes()
    # A model that is to be sharded must not be whole on every GPU first.
    policy = load_policy(card, start, device="cpu" if options.sharding in ("zero3", "fsdp2") else "auto")
    policy.train()  # transformers checkpoints activations in training mode only
    if options.update.memory.gradient_checkpointing:
        policy.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    weight_decay = options.update.optimizer.weight_decay
    learner = (
        ShardedLearner(policy, weight_decay, options.sharding, options.sequence_parallel, options.offload)
        if shared_out else Learner(policy, weight_decay)
    )  # fmt: skip
    if isinstance(learner, ShardedLearner) and learner.rank == 0:
        print(f"training by {learner.strategy.title}, processes: {learner.world}", flush=True)
    if options.update.loss.beta:
        learner.keep_reference(start)
    return learner


def publish(learner: Learner, run: Run) -> None:
    """Publish the step's adapter. After a resume it may be there already; then it must be what would be published."""
    run_dir, path = run.options.run_dir, adapter_path(run.options.run_dir, run.step)
    if path.name in run.digests:
        return
    with run.phases("publish"):
        if not learner.broadcast(path.exists()):
            learner.publish(run_dir, run.step)
        elif not published_same(learner, path, run.step):
            raise UserError(
                f"{path} has other weights than this run comes to at step {run.step}; move it out of the run folder, "
                "then re-run the same command to publish the run's own"
            )
        run.digests[path.name] = learner.broadcast(weights_digest(path) if learner.rank == 0 else "")


def published_same(learner: Learner, path: Path, version: int) -> bool:
    """Whether the adapter that is there has the weights that would be published now."""
    scratch = path.parents[1] / "state" / ".published"
    try:
        again = learner.publish(scratch, version)
        same: bool = learner.broadcast(same_weights(path, again) if learner.rank == 0 else False)
    finally:
        if learner.rank == 0:
            shutil.rmtree(scratch, ignore_errors=True)
    return same


def guard(run: Run, learner: Learner, stats: StepStats) -> StepStats:
    """On a collapse stop, go back to an older adapter, or note it, as --on-collapse says."""
    options = run.options.guard
    history = [past for past in (*run.history, stats) if past.step >= run.guarded_from]
    wrong = stats.notes[0] if stats.notes else fault_of(history, options)
    if not wrong:
        return stats
    if options.on_collapse == "stop" or run.rollbacks == options.max_rollbacks:
        if learner.rank == 0 and run.history:
            draw_report(run.options.run_dir, run.history)  # so that the plots show what led up to it
        raise UserError(
            f"stopped at step {run.step}: {wrong}. The last adapter is {adapter_path(run.options.run_dir, run.step)}; "
            "lower --learning-rate, or continue with --on-collapse rollback or warn"
        )
    if options.on_collapse == "rollback":
        first = max(run.guarded_from, run.step - options.rollback_steps)  # never behind an earlier rollback
        back = min(version for version in versions(run.options.run_dir) if version >= first)  # older ones may be pruned
        check_adapter(run, back)
        learner.load_adapter(adapter_path(run.options.run_dir, back))
        run.guarded_from, run.rollbacks = run.step + 1, run.rollbacks + 1
        wrong += f"; went back to adapter v{back:06d}"
    print(f"step {run.step}: {wrong}", flush=True)
    return replace(stats, notes=[*stats.notes, wrong])
