"""A run between two steps, and how it resumes.

It goes on from its checkpoint; what is newer, or of another run, is put into stale/ and not learnt from.

At the checkpoint of step 7 (before step 7) a run that was killed at any moment has left adapters up to v000007,
statistics up to step 7 (of a step that was not saved), evaluations up to version 7, and the plans and episodes of step
7 and of those that workers play ahead. The rest does not follow from the checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from forage.agent.episode import Episode, compress, episode_files, read_episodes
from forage.agent.options import AgentSettings, weights_named
from forage.agent.rewards import MEASURED, MakeRewards
from forage.data.splits import Splits, in_rounds
from forage.errors import UserError, first_line
from forage.files import remove_folder
from forage.grpo.gain import information_gain
from forage.grpo.learner import Learner
from forage.grpo.losses import advantage_named, loss_named
from forage.grpo.options import FREE, HINT, TrainOptions
from forage.grpo.teacher import get_hints_named, teacher_adapter
from forage.manifest import contradictions, flat, plain
from forage.policy.adapters import DIGITS, adapter_path, sampled_by, version_name, versions, weights_digest
from forage.policy.manifest import read_policy_manifest
from forage.rollout.agreement import (
    RUN_FILE,
    RunManifest,
    disagreements,
    manifest_now,
    read_run,
    write_run,
)
from forage.rollout.plans import Plan, plan_of, plan_path, read_plan, write_plan
from forage.runs.run_folder import keep_code, set_aside
from forage.runs.stats import (
    Phases,
    StepStats,
    read_evaluations,
    read_stats,
    stats_path,
    steps_there,
    write_evaluations,
)

# Run: the state of a training run between two steps, in memory and in its checkpoint, and what it plans.

KEPT = ("guarded_from", "rollbacks", "digests")  # fields of a run that a checkpoint saves


@dataclass
class Run:
    """A run between two steps."""

    options: TrainOptions
    step: int
    guarded_from: int
    """The first step that the guards look at: the one after the last rollback."""
    rollbacks: int
    history: list[StepStats]
    questions: list[str]
    eval_questions: list[str]
    manifest: RunManifest
    digests: dict[str, str] = field(default_factory=dict)
    """By adapter, such as v000007, the digest of the weights that this run published."""
    rounding: dict[str, float] = field(default_factory=dict)
    """By sampler, nats a token that lay between it and the trainer when it was last held against other adapters."""
    phases: Phases = field(default_factory=Phases)

    def published(self, name: str) -> bool:
        """Whether episodes of an adapter of this name, such as run-v000007-0123abcd, are this run's own."""
        version, digest = sampled_by(name)
        if version > self.step:
            return False
        weights = self.digests.get(version_name(version)) or weights_digest(adapter_path(self.options.run_dir, version))
        # A worker may have played before the trainer published its first adapter.
        start = self.manifest.adapter_weights if version == 0 else ""
        return digest in {known[:DIGITS] for known in (weights, start) if known}


def plan_step(run: Run, step: int) -> Plan:
    """A step's questions, and spare ones to replace groups that turn out flat."""
    options, rollout = run.options, run.options.rollout
    plan = replace(
        plan_of(rollout, run.questions, step),
        oldest=max(run.guarded_from, step - options.max_staleness),
        credit=options.update.credit,
        word_cost=options.update.word_cost,
    )
    spare = in_rounds(run.questions, step, min(options.replace_flat, len(run.questions)), rollout.seed + 1)
    return replace(plan, spare=tuple(name for name in dict.fromkeys(spare) if name not in plan.questions))


def write_plans(run: Run) -> Plan:
    """Write plans for this step and those that workers may play ahead. Returns this step's.

    One that was written before a rollback, or with a higher --max-staleness, now asks for episodes of newer adapters.
    """
    options = run.options
    for step in range(run.step, min(run.step + options.max_staleness + 1, options.max_steps)):
        path = plan_path(options.run_dir, f"{step:06d}")
        plan = plan_step(run, step)
        if not path.exists() or read_plan(path).oldest < plan.oldest:
            write_plan(options.run_dir, plan)
    return plan_step(run, run.step)


def plan_evaluation(run: Run) -> Plan:
    return Plan(
        f"{run.step:06d}-eval", run.step, tuple(run.eval_questions), split="eval", num_rollouts=1,
        temperature=0.0, seed=run.options.rollout.seed, oldest=run.step,
    )  # fmt: skip


def checkpoint_fields(run: Run) -> dict[str, Any]:
    """What a checkpoint saves, with the options that may not change."""
    return {name: getattr(run, name) for name in ("step", *KEPT)} | {"options": fixed_options(run.options)}


# Resuming

FREE_PARTS = [f"options.{name}" for name in FREE]


def agree_on_run(options: TrainOptions, settings: AgentSettings, make_rewards: MakeRewards) -> RunManifest:
    """Write the run's manifest when it starts; refuse to resume it with another start policy, other data or rewards.

    Its figures before and after would be called by the same names and mean different things.
    """
    run_dir = options.run_dir
    known = read_run(run_dir)
    if known is None and any((run_dir / part).exists() for part in ("adapters", "state")):
        raise UserError(f"{run_dir} holds a run but no {RUN_FILE}; put that back, or give another --run-dir")
    loss, advantage = options.update.loss.loss, options.update.advantage
    parts = {loss: loss_named(loss), advantage: advantage_named(advantage)}  # fails before anything is loaded
    own, teacher = [part for name, part in parts.items() if ":" in name], options.update.teacher
    own += [get_hints_named()] if teacher == HINT else []
    if MEASURED in weights_named(options.rollout.weights):
        own.append(information_gain)
        if options.replace_flat:
            raise UserError(f"--replace-flat looks at episodes before {MEASURED} is measured; leave it out")
    now = manifest_now(options.rollout, settings, make_rewards, run_dir, known, options, own)
    if teacher not in ("", HINT) and "://" not in teacher:
        policy = read_policy_manifest(options.rollout.policy)
        now = replace(now, teacher=weights_digest(teacher_adapter(teacher, policy)))
    if known:
        words = contradictions({"options": now.options}, {"options": known.options}, FREE_PARTS)
        words += disagreements(known, now)
        if words:
            raise UserError(
                f"{run_dir} was begun with {'; '.join(words)}: give that, or another --run-dir (--policy {run_dir} "
                "goes on from what was learnt here)"
            )
    keep_code(run_dir)
    write_run(run_dir, now)
    return now


def open_run(options: TrainOptions, learner: Learner, manifest: RunManifest, questions: Splits) -> Run:
    """Resume the run from its last checkpoint, or start a new one."""
    step, saved = resume_point(options, learner)
    history = read_stats(options.run_dir, before=step)
    held_out = list(questions["eval"])
    if both := questions["train"].keys() & questions["eval"].keys():
        raise UserError(
            f"{options.rollout.data}: question {min(both)} is trained on and held out; take it out of train.jsonl or "
            "eval.jsonl"
        )
    count = min(options.eval_questions or len(held_out), len(held_out))
    chosen = random.Random(options.rollout.seed).sample(held_out, count)
    if options.eval_every and not chosen:
        raise UserError(f"{options.rollout.data}/eval.jsonl has no question to evaluate on; give --eval-every 0")
    if step:
        print(f"resuming from step {step}")
    elif versions(options.run_dir)[1:]:
        print(f"{options.run_dir}/state holds no checkpoint: the run starts over at step 0")
    return Run(
        options, step, **{name: saved[name] for name in KEPT if name in saved}, history=history,
        questions=list(questions["train"]), eval_questions=chosen, manifest=manifest,
        phases=Phases(learner.synchronize),
    )  # fmt: skip


def resume_point(options: TrainOptions, learner: Learner) -> tuple[int, dict[str, Any]]:
    """The step and the fields of the newest checkpoint; refuses one that is damaged or of other options."""
    state, start_over = options.run_dir / "state", "give another --run-dir, or move it away to start over"
    try:
        step, saved = learner.load(state) or (0, {"guarded_from": 0, "rollbacks": 0})
    except (SafetensorError, ValueError, KeyError, FileNotFoundError) as error:
        raise UserError(f"{state} is damaged ({first_line(error)}); {start_over}") from error
    if step and saved.get("step") != step:
        raise UserError(f"{state}/{step:06d} holds the checkpoint of step {saved.get('step')}; give it its name back")
    if words := contradictions({"options": fixed_options(options)}, {"options": saved.get("options", {})}):
        raise UserError(f"{state} is of a run with {'; '.join(words)}; {start_over}")
    return step, saved


def fixed_options(options: TrainOptions) -> dict[str, Any]:
    """The options that may not change when the run is resumed."""
    return {name: value for name, value in flat(plain(options)).items() if name not in FREE}


def put_right(run: Run) -> None:
    """Put what is newer than the checkpoint, or can't be this run's, into stale/. Before anything is published."""
    options, step = run.options, run.step
    run_dir = options.run_dir
    newer = [adapter_path(run_dir, version) for version in versions(run_dir) if version > step]
    newer += [stats_path(run_dir, number) for number in steps_there(run_dir) if number > step]
    newer += [path for path in (run_dir / "plans").glob("[0-9]*-eval.json") if int(path.stem[:6]) > step]
    there, evaluated = read_evaluations(run_dir), evaluations_so_far(run)
    if any(version > step or row != evaluated.get(version, row) for version, row in there.items()):
        newer.append(run_dir / "evaluations.json")
    set_aside(run_dir, newer, f"newer than the checkpoint, which is of step {step}, or of another run")
    if evaluated:
        write_evaluations(run_dir, evaluated)  # the file may have been deleted; what is kept goes by it
    foreign = [
        adapter_path(run_dir, version) for version in versions(run_dir) if version < step and not intact(run, version)
    ]
    set_aside(run_dir, foreign, "other weights than this run published")
    for path in sorted((run_dir / "plans").glob("[0-9]*.json")):
        number = int(path.stem[:6])
        if number < step:
            path.unlink()  # used up; a killed run had no time to remove it
        elif not path.stem.endswith("-eval") and number < options.max_steps and not is_own(run, path):
            set_aside(run_dir, (path, run_dir / "episodes" / path.stem), "not what this run plans")


def intact(run: Run, version: int) -> bool:
    """Whether an adapter has the weights that this run published."""
    path = adapter_path(run.options.run_dir, version)
    published = run.digests.get(path.name)
    return path.exists() and published in (None, weights_digest(path))


def is_own(run: Run, path: Path) -> bool:
    plan = read_plan(path)
    return plan == replace(plan_step(run, int(plan.name)), oldest=plan.oldest)


def put_episodes_right(run: Run) -> None:
    """Put episodes of steps to come that no plan asked for, or that none of this run's adapters sampled, into stale/.

    Only for a run whose adapter of this step is published: it may have sampled some of them.
    """
    run_dir, step, last = run.options.run_dir, run.step, run.options.max_steps
    for folder in sorted((run_dir / "episodes").glob("[0-9]*")):
        number, files = int(folder.name[:6]), episode_files(folder)
        if number < step or number > last or not files:
            continue
        planned = plan_path(run_dir, f"{number:06d}").exists()
        evaluated = folder.name.endswith("-eval") and number == step > 0
        if not planned and not evaluated and number < last:
            set_aside(run_dir, [folder], "no plan of this run asked for these episodes")
        elif any(foreign(run, read_episodes(path)) for path in files):
            set_aside(run_dir, [folder], "played with adapters that are not this run's")


def foreign(run: Run, episodes: Iterable[Episode]) -> list[str]:
    """The adapters of episodes that this run has not published."""
    return [name for name in dict.fromkeys(episode.adapter for episode in episodes) if not run.published(name)]


def evaluations_so_far(run: Run) -> dict[int, Any]:
    """The evaluations by adapter version: those of evaluations.json, and those that the steps' statistics hold.

    Before the first checkpoint nothing shows whose evaluations.json it is, and the episodes of an evaluation are there
    to evaluate it again; so it is not read then.
    """
    told = {stats.step: dict(stats.evaluation) for stats in run.history if stats.evaluation}
    known = read_evaluations(run.options.run_dir) if run.step else {}
    if any(known.get(version, row) != row for version, row in told.items()):
        known = {}  # another run's
    return dict(sorted(({version: row for version, row in known.items() if version <= run.step} | told).items()))


# Keeping: which adapters of a run stay, and that finished steps' episodes are compressed


RECENT = 10  # steps whose episodes a late worker may still write


def tidy(options: TrainOptions, step: int) -> None:
    """What each step ends with, once its checkpoint is on the disk, and what a resumed run begins with."""
    there, evaluated = versions(options.run_dir), read_evaluations(options.run_dir)
    for version in set(there) - kept_versions(there, options, evaluated):
        remove_folder(adapter_path(options.run_dir, version))
    # Looking into every step's folder after each step would make a run of thousands of steps wait for its file system.
    for number in range(max(0, step - RECENT), step + 1):
        done = [f"{number:06d}"] * (number < step) + [f"{number:06d}-eval"] * (number in evaluated)
        for path in [path for name in done for path in (options.run_dir / "episodes" / name).glob("*.jsonl")]:
            compress(path)


def kept_versions(there: Iterable[int], options: TrainOptions, evaluated: Collection[int]) -> set[int]:
    """The versions to keep: the first, those that were evaluated, and the last few, of which a rollback or a worker
    that still loads may need some.

    Example: of 0 to 20 with --keep-adapters 7 and version 10 evaluated: 0, 10 and 14 to 20.
    """
    ordered = sorted(there)
    if not options.keep_adapters:
        return set(ordered)
    last = max(options.keep_adapters, options.guard.rollback_steps + 1, options.max_staleness + 2)
    return {*ordered[:1], *ordered[-last:], *(version for version in ordered if version in evaluated)}
