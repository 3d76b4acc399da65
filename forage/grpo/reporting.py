"""Reporting: a step's statistics, plots and lines."""

from __future__ import annotations

import math
import resource
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from forage.agent.combination import names_of_rewards
from forage.agent.episode import Episode
from forage.engines.base import played_at
from forage.grpo.losses import flat_groups
from forage.grpo.options import UpdateOptions
from forage.grpo.players import Play
from forage.grpo.run import Run
from forage.grpo.update import TrainingBatch
from forage.metrics import Interval
from forage.policy.adapters import adapter_path, sampled_by, version_name
from forage.rollout.plans import Plan
from forage.runs.drawing import Drawing
from forage.runs.progress import advice, print_step
from forage.runs.stats import (
    AS_TRAINED,
    EpisodeFigures,
    StepStats,
    read_evaluations,
    rewards_of,
    verdict_on_run,
    verdicts,
)
from forage.runs.trackers import Log, flatten
from forage.text import say


def collect(run: Run, plan: Plan, batch: TrainingBatch, training: Mapping[str, float]) -> StepStats:
    episodes = batch.episodes
    rewards: dict[str, list[float | None]] = {"overall": list(batch.means_N.tolist())}
    rewards |= {name: [episode.rewards.get(name) for episode in episodes] for name in names_of_rewards(episodes)}
    if learns_from_another(run.options.update):
        rewards[AS_TRAINED] = list(batch.combined_N.tolist())
    return StepStats(
        step=run.step,
        adapter=version_name(max(sampled_by(episode.adapter)[0] for episode in episodes)),
        rewards=rewards,
        groups={
            "total": len(batch.groups()),
            "flat": batch.flat,
            "replaced": len(batch.groups().keys() - set(plan.questions)),
        },
        episodes=figures_of(episodes),
        stops=counted(e.stop for e in episodes) | ({"agent": batch.failed} if batch.failed else {}),
        faults=counted(fault for e in episodes for fault in e.faults),
        training={name: value for name, value in training.items() if math.isfinite(value)},
        evaluation=read_evaluations(run.options.run_dir).get(run.step),
        flat_by_reward=flat_counts(rewards, [episode.question_id for episode in episodes]),
        notes=[f"{name} is {value}" for name, value in training.items() if not math.isfinite(value)],
        seconds=run.phases.take() | waited(episodes),
        memory_gib=peak_memory(),
        workers={} if run.options.rollouts == "own" else counted(episode.worker for episode in episodes),
        servers=counted(episode.server for episode in episodes),
    )


def flat_counts(rewards: Mapping[str, Sequence[float | None]], groups: Sequence[str]) -> dict[str, int]:
    """By reward, in how many groups all episodes have the same value of it. Groups without the reward don't count.

    Example: {"mrr": [0, 1, .5, .5, None, None]} in groups a, a, b, b, c, c gives {"mrr": 1}.
    """
    rows = {name: [math.nan if value is None else value for value in values] for name, values in rewards.items()}
    return {name: len(flat_groups(values, groups)) for name, values in rows.items()}


def counted(names: Iterable[str]) -> dict[str, int]:
    """How often each name occurs. Example: "b", "", "a", "b" gives {"a": 1, "b": 2}."""
    return dict(sorted(Counter(filter(None, names)).items()))


def learns_from_another(options: UpdateOptions) -> bool:
    """Whether training learns from another reward than the weighted mean."""
    return options.combine != "uniform" or options.overlong == "punish"


def waited(episodes: Sequence[Episode]) -> dict[str, float]:
    """Mean seconds an episode waited for the engine and for searches, both of them part of the rollout."""
    names = ("generate", "search")
    return {name: sum(episode.seconds.get(name, 0.0) for episode in episodes) / len(episodes) for name in names}


def figures_of(episodes: Sequence[Episode]) -> EpisodeFigures:
    count, queries = len(episodes), [search.query for episode in episodes for search in episode.searches]
    return {
        "count": count,
        "well_formed": sum(e.well_formed for e in episodes) / count,
        "searches": len(queries) / count,
        "distinct_queries": len(set(queries)) / max(1, len(queries)),
        "turns": sum(len(e.turns) for e in episodes) / count,
        "sampled_tokens": sum(e.sampled for e in episodes) / count,
        "tokens": sum(len(e.ids) for e in episodes) / count,
    }


def peak_memory() -> float:
    """GiB at the peak: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def show(run: Run, stats: StepStats, log: Log, drawing: Drawing) -> None:
    """Log the finished step, print its line, and draw the plots if they are due."""
    log(stats.step, flatten(stats))
    print_step(run.history, run.options.max_steps, f", {played_at(run.options.rollout.temperature)}")
    drawing.after(stats)


def report_end(run: Run, play: Play) -> None:
    """Print which adapter is the result, if the trainer waited, and what the evaluations show."""
    known = read_evaluations(run.options.run_dir)
    print(f"{adapter_path(run.options.run_dir, run.step)} is the result of {run.step} steps")
    if says := advice(run.history):
        print(says)
    if len(known) > 1:
        compare(run, known[min(known)], known[max(known)], play)


def compare(run: Run, first: Mapping[str, Interval], last: Mapping[str, Interval], play: Play) -> None:
    """The held-out rewards before and after training, beside plain RAG, and what they show."""
    options = run.options
    asked, how = f"{len(run.eval_questions)} held-out questions", played_at(options.eval_temperature)
    print(f"{asked}    before    after    (95 % interval), {how}")
    for name, before in first.items():
        after = last[name]
        print(f"{name:25} {before['mean']:8.3f} {after['mean']:8.3f}    ({after['low']:.3f} to {after['high']:.3f})")
    said, mrr = verdict_on_run(options.run_dir), rewards_of(options.run_dir, run.step, "mrr")
    if ranks := play.plain_rag(list(mrr)):
        said += verdicts("the trained policy", "plain RAG", "mrr", mrr, ranks, options.rollout.data)
    command = f"--data {options.rollout.data} --policy before={options.rollout.policy} after={options.run_dir}"
    command += f" --temperature {options.eval_temperature:g}"
    for line in (*said, f"beside plain RAG, answers included: python evaluate.py {command}"):
        say(line)
