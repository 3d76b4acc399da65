"""Inventory: everything in a run folder must follow from its checkpoint, or the run is not resumed.

At the checkpoint of step 7 (before step 7) a run that was killed at any moment has left adapters up to v000007,
statistics up to step 7 (of a step that was not saved), evaluations up to version 7, and the plans and episodes of step
7 and of those that workers play ahead. Whatever is beyond that is of another run, or the checkpoint is not the newest:
if the run went on, it would take the one's adapters and episodes for the other's.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from forage.agent.episode import episode_files, read_episodes
from forage.errors import UserError
from forage.grpo.players import plan_step
from forage.grpo.provenance import check_adapter, check_sampled
from forage.grpo.run import Run
from forage.policy.adapters import adapter_path, versions
from forage.rollout.plans import Plan, plan_path, read_plan
from forage.runs.run_folder import start_over
from forage.runs.stats import read_evaluations, stats_path, steps_there


def check_folder(run: Run) -> None:
    """Refuse a run folder that holds what its checkpoint can't explain; for its episodes see check_episodes."""
    check_adapters(run)
    check_figures(run)
    check_plans(run)


def check_adapters(run: Run) -> None:
    run_dir, there = run.options.run_dir, versions(run.options.run_dir)
    if there and there[-1] > run.step:
        raise beyond(run, adapter_path(run_dir, there[-1]))
    for version in there:
        if version < run.step:
            check_adapter(run, version)


def check_figures(run: Run) -> None:
    run_dir, steps = run.options.run_dir, steps_there(run.options.run_dir)
    if steps and steps[-1] > run.step:
        raise beyond(run, stats_path(run_dir, steps[-1]))
    path, known = run_dir / "evaluations.json", read_evaluations(run_dir)
    if known and max(known) > run.step:
        raise beyond(run, path)
    for stats in run.history:
        if stats.evaluation and known.get(stats.step, stats.evaluation) != stats.evaluation:
            raise UserError(
                f"{path} and {stats_path(run_dir, stats.step)} differ, so one of them is of another run; delete "
                f"{path.name} to make it again from the statistics, or {start_over(run_dir)}"
            )


def check_plans(run: Run) -> None:
    """Refuse plans of another run; remove those that were used up, which a killed run had no time to remove."""
    for path in sorted((run.options.run_dir / "plans").glob("[0-9]*.json")):
        number = int(path.stem[:6])
        if number < run.step:
            path.unlink()
        elif path.stem.endswith("-eval"):
            if number > run.step:
                raise beyond(run, path)
        elif number < run.options.max_steps and (name := difference(run, read_plan(path))):
            raise UserError(
                f"{path} has other {name} than this run would plan; move it and episodes/{path.stem} out of the run "
                "folder, then re-run the same command"
            )


def difference(run: Run, plan: Plan) -> str | None:
    """The first field in which a plan differs from this run's own."""
    own = replace(plan_step(run, int(plan.name)), oldest=plan.oldest)
    if not own.spare and not plan.spare:
        own = replace(own, combine=plan.combine, weights=plan.weights)  # they decide about spare questions alone
    varying = run.options.pool or run.options.replace_flat  # what was planned ahead depends on when it was planned
    if varying and {*plan.questions, *plan.spare} <= set(run.questions):
        own = replace(own, questions=plan.questions, spare=plan.spare)
    names = (field.name for field in fields(Plan))
    return next((name for name in names if getattr(plan, name) != getattr(own, name)), None)


def check_episodes(run: Run) -> None:
    """Refuse episodes of steps to come that no plan asked for, or that none of this run's adapters sampled.

    Only for a run whose adapter of this step is published: it may have sampled some of them.
    """
    run_dir = run.options.run_dir
    for folder in sorted((run_dir / "episodes").glob("[0-9]*")):
        number, files = int(folder.name[:6]), episode_files(folder)
        if number < run.step or number > run.options.max_steps or not files:
            continue
        planned = plan_path(run_dir, f"{number:06d}").exists()
        evaluated = folder.name.endswith("-eval") and number == run.step > 0
        if not planned and not evaluated and number < run.options.max_steps:
            raise UserError(
                f"{folder} holds episodes that no plan of this run asked for; move it out of the run folder, then "
                "re-run the same command"
            )
        for path in files:
            check_sampled(run, read_episodes(path))


def beyond(run: Run, path: Path) -> UserError:
    """The error for something newer than the checkpoint."""
    reached = f"its checkpoint in state/ is of step {run.step}" if run.step else "there is no checkpoint in state/"
    run_dir = run.options.run_dir
    return UserError(f"{path} is of a run that went further, but {reached}; put state/ back, {start_over(run_dir)}")
