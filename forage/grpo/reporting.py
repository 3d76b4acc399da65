"""Reporting: a step's statistics, plots and lines, and signs that a run has gone wrong."""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean

import torch

from forage.agent.episode import Episode
from forage.agent.rewards import names_of_rewards
from forage.engines.base import played_at
from forage.grpo.players import Play
from forage.grpo.resume import Run
from forage.grpo.update import TrainingBatch
from forage.manifest import plain
from forage.metrics import grouped
from forage.policy.adapters import adapter_path, sampled_by, version_name
from forage.rollout.plans import Plan, is_flat
from forage.runs.stats import (
    AS_TRAINED,
    EpisodeFigures,
    StepStats,
    advice,
    before_beside_after,
    cost,
    first_and_last,
    one_question,
    print_step,
    read_evaluations,
    rewards_of,
    verdict_on_run,
    write_plain_rag,
)
from forage.runs.trackers import AGENT_ORDER, Log, chosen, flatten, open_tracker
from forage.text import say


def collect(run: Run, plan: Plan, batch: TrainingBatch, training: Mapping[str, float]) -> StepStats:
    episodes, questions = batch.episodes, {episode.question_id for episode in batch.episodes}
    rewards: dict[str, list[float | None]] = {"overall": [episode.reward for episode in episodes]}
    rewards |= {name: [episode.rewards.get(name) for episode in episodes] for name in names_of_rewards(episodes)}
    update = run.options.update
    if update.combine != "uniform" or update.overlong == "punish":  # it learns from another than the weighted mean
        rewards[AS_TRAINED] = list(batch.combined_N.tolist())
    flat = flat_counts(rewards, [episode.question_id for episode in episodes])
    return StepStats(
        step=run.step,
        adapter=version_name(max(sampled_by(episode.adapter)[0] for episode in episodes)),
        rewards=rewards,
        groups={
            "total": len(questions),
            "flat": flat["overall"],
            "replaced": len(questions - set(plan.questions)),
        },
        episodes=figures_of(episodes),
        stops=counted(e.stop for e in episodes) | ({"agent": batch.failed} if batch.failed else {}),
        faults=counted(fault for e in episodes for fault in e.faults),
        training={name: value for name, value in training.items() if math.isfinite(value)},
        evaluation=read_evaluations(run.options.run_dir).get(run.step),
        flat_by_reward=flat,
        notes=[f"{name} is {value}" for name, value in training.items() if not math.isfinite(value)],
        seconds=run.phases.take() | waited(episodes),
        memory_gib=torch.cuda.max_memory_allocated() / 2**30
        if torch.cuda.is_available()
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        workers={} if run.options.rollouts == "own" else counted(episode.worker for episode in episodes),
        servers=counted(episode.server for episode in episodes),
        price_per_hour=run.options.price_per_hour,
    )


def flat_counts(rewards: Mapping[str, Sequence[float | None]], groups: Sequence[str]) -> dict[str, int]:
    """By reward, in how many groups all episodes have the same value of it. Groups without the reward don't count.

    Example: {"mrr": [0, 1, .5, .5, None, None]} in groups a, a, b, b, c, c gives {"mrr": 1}.
    """
    rows = {name: zip(groups, values, strict=True) for name, values in rewards.items()}
    known = {name: grouped((group, value) for group, value in row if value is not None) for name, row in rows.items()}
    return {name: sum(map(is_flat, of.values())) for name, of in known.items()}


def counted(names: Iterable[str]) -> dict[str, int]:
    """How often each name occurs. Example: "b", "", "a", "b" gives {"a": 1, "b": 2}."""
    return dict(sorted(Counter(filter(None, names)).items()))


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
        "tokens": sum(e.length for e in episodes) / count,
    }


class Reports:
    """What is logged, printed and drawn of a run while it goes on."""

    def __init__(self, run: Run, log: Log) -> None:
        self.run, self.log, self.drawing = run, log, Drawing(run.options.run_dir)

    def step(self, stats: StepStats) -> None:
        """Log the finished step, print its line, and draw the plots if they are due."""
        self.log(stats.step, flatten(stats))
        options = self.run.options
        print_step(self.run.history, options.max_steps, f", {played_at(options.rollout.temperature)}")
        self.drawing.after(stats)

    def end(self, play: Play) -> None:
        """Print which adapter is the result, if the trainer waited, and what the evaluations show; draw all of it."""
        run = self.run
        if not run.history:
            return
        known = read_evaluations(run.options.run_dir)
        print(f"{adapter_path(run.options.run_dir, run.step)} is the result of {run.step} steps")
        print(cost(run.history))
        if says := advice(run.history):
            print(says)
        if len(known) > 1:
            compare(run, play)
        self.drawing.finish()  # with the last evaluation


@contextmanager
def open_reports(run: Run, *, first: bool) -> Iterator[Reports]:
    """Reports to the tracker that --report-to names; those of another process than the first are never asked."""
    kind = chosen(run.options.report_to, AGENT_ORDER) if first else "none"
    with open_tracker(kind, run.options.run_dir, plain(run.options)) as log:
        yield Reports(run, log)


def compare(run: Run, play: Play) -> None:
    """The held-out rewards before and after training, beside plain RAG, and what they show."""
    options, run_dir = run.options, run.options.run_dir
    before, after = first_and_last(run_dir)
    asked = {name: [*rewards_of(after, name)] for name in ("found", "mrr")}
    plain = {name: play.plain_rag(questions, name) for name, questions in asked.items() if questions}
    if any(plain.values()):
        write_plain_rag(run_dir, plain)
    said = verdict_on_run(run_dir, before, after)
    print(f"{len(run.eval_questions)} held-out questions, {played_at(0.0)}; 95 % intervals:")
    command = f"--data {options.rollout.data} --policy before={options.rollout.policy} after={run_dir}"
    further = f"beside plain RAG: python evaluate.py {command} --temperature 0"
    for line in (*before_beside_after(run_dir), *said, *one_question(run_dir, before, after), further):
        say(line)


# Guards: signs that a run has gone wrong without any exception.

WINDOW = 3  # steps to average over, so that one bad step is no sign of collapse
MIN_SHARE = 0.5  # of this run's best: no further may well-formed episodes and searches per episode fall
MIN_ENTROPY = 0.005  # nats per token: below it, all episodes of a question are alike and nothing can be compared
MAX_FALL = 0.05  # nats per token that updates take from what they reward; those of a run that learns add some
MAX_FLAT = 10  # steps in a row in which no episode has an advantage or a credit
MAX_KL = 10.0  # to the starting policy; measured only with --beta
MAX_EXCESS = 0.02  # nats by which sampled tokens are likelier than draws from the policy, beyond EXCESS_ERRORS of them
EXCESS_ERRORS = 6
MAX_MISMATCH = 0.1  # mean KL from sampler to trainer; above it, an adapter is stale or the precisions differ too much


def fault_of(history: Sequence[StepStats]) -> str:
    """What has gone wrong, all of it in one sentence; empty if nothing has."""
    return "; ".join(faults(history))


def faults(history: Sequence[StepStats]) -> Iterator[str]:
    """Each as half a sentence.

    Example: shares of well-formed episodes .9, .9, .9, .3, .3, .3 and a window of 3: the last window's mean is less
    than half of the best window's, so "well-formed episodes fell from 0.90 to 0.30".
    """
    flat = history[-MAX_FLAT:]
    if len(flat) == MAX_FLAT and not any(stats.taught for stats in flat):
        yield f"in {MAX_FLAT} steps, there was nothing to learn from, as no two episodes of a question differed"
    last = history[-WINDOW:]
    for name, key, most in (
        ("KL to the starting policy", "kl", MAX_KL),
        ("KL of sampler to trainer", "mismatch_kl", MAX_MISMATCH),  # from the first step, if it is a wrong one
    ):
        values = [stats.training[key] for stats in last if key in stats.training]
        if values and mean(values) > most:
            yield f"{name} is {mean(values):.3g}, above {most:g}"
    drawn = [stats.training for stats in last if "excess" in stats.training]
    excess = mean(each["excess"] for each in drawn) if drawn else 0.0
    error = sum(each["excess_error"] ** 2 for each in drawn) ** 0.5 / max(1, len(drawn))
    if excess > max(MAX_EXCESS, EXCESS_ERRORS * error):
        yield (
            f"sampled tokens are likelier than draws from the policy, by {excess:.2g} nats: the sampler cuts its "
            "distribution (top-p, top-k), or has another temperature"
        )
    if len(history) < WINDOW:
        return
    shares: dict[str, Callable[[StepStats], float]] = {
        "well-formed episodes": lambda stats: stats.episodes["well_formed"],
        "searches per episode": lambda stats: stats.episodes["searches"],
    }
    for name, figure in shares.items():
        windows = means([figure(stats) for stats in history], WINDOW)
        if windows[-1] < MIN_SHARE * max(windows):
            yield f"{name} fell from {max(windows):.2f} to {windows[-1]:.2f}"
    entropy = [stats.training["entropy"] for stats in last if "entropy" in stats.training]
    if entropy and mean(entropy) < MIN_ENTROPY:
        yield f"entropy fell to {mean(entropy):.4f} nats per token"
    gains = [stats.training["likelihood_gain"] for stats in last if "likelihood_gain" in stats.training]
    if gains and mean(gains) < -MAX_FALL:
        yield f"updates made what they reward less likely, by {-mean(gains):.2f} nats per token"


def means(values: Sequence[float], window: int) -> list[float]:
    """Mean of each `window` neighbouring values. Example: 1, 2, 3 with a window of 2: 1.5, 2.5."""
    return [mean(values[end - window : end]) for end in range(window, len(values) + 1)]


# Drawing: has a run's plots and page drawn by a process of their own, from what is in its folder.
#
# Training neither waits for them nor ends where they fail.

ROOT = Path(__file__).parents[2]  # of this package, wherever a script was started
DRAW_EVERY = 60.0  # seconds, of which a drawing takes some 6 of a core
COMMAND = (sys.executable, "-m", "forage.runs.report")


class Drawing:
    """Draws after a step with an evaluation, and after any that ends a minute after the last drawing began.

    Example: steps end after 8, 16, 40, 70 and 90 seconds, the second one with an evaluation: drawn at 16 and 90.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir, self._began = run_dir, time.monotonic()
        self._process: subprocess.Popen[str] | None = None

    def after(self, stats: StepStats) -> None:
        """Draw, if it is time to; never two at once."""
        now = time.monotonic()
        if stats.evaluation is None and now - self._began < DRAW_EVERY:
            return
        if self._process is None or self._process.poll() is not None:
            self._began, self._process = now, self._start("--live")

    def finish(self) -> None:
        """Draw the whole run, wait for it, and print where it is, or why it is not."""
        if self._process is not None:
            self._process.wait()
        process = self._start()
        said = process.communicate()[0].strip().splitlines()[-1:]
        if process.returncode:
            again = f"python -m forage.runs.report {self._run_dir}"
            said = [f"{self._run_dir / 'run.html'} was not written ({''.join(said)}); {again} tries again"]
        for line in said:
            say(line)

    def _start(self, *more: str) -> subprocess.Popen[str]:
        command = [*COMMAND, str(self._run_dir), *more]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PYTHONPATH": path}
        )
