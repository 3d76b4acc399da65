"""StepStats: the statistics of one training step, and their files, training_stats_<step>.json in the run folder.

A file is one JSON object with a line per field, in the order below. `summary` is computed from `rewards` on writing.
Only the fields under `measured` differ between two runs of the same seed on the same machine.

    {
    "schema": 1,
    "step": 7,
    "adapter": "v000007",
    "rewards": {"overall": [0.5, 0.75], "mrr": [0.0, 1.0]},         null where a reward does not exist for a question
    "summary": {"overall": {"mean": 0.625, "std": 0.125, "min": 0.5, "p25": 0.5625, ...}, ...},
    ...
    "measured": {"seconds": {"rollout": 20.5, "step": 31.0}, "memory_gib": 1.5, "workers": {"a": 2}}
    }
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cached_property, reduce
from operator import getitem
from pathlib import Path
from typing import Any, NotRequired

import numpy as np
from typing_extensions import TypedDict  # pydantic can't read typing's before Python 3.12

from forage.agent.episode import Episode, episodes_in
from forage.data.records import Question, read_questions
from forage.errors import UserError
from forage.files import replacing
from forage.heartbeat import beat
from forage.manifest import read_manifest_as, write_manifest
from forage.metrics import Interval, bootstrapped, figure, verdict
from forage.progress import duration
from forage.text import encodable, say, typed

# Phases: stopwatches that say where a step's time goes.


class Phases:
    """Stopwatches by name.

    Example: phases("rollout") from second 0 to 10, and within it phases("search") from 2 to 5, give
    {"rollout": 10, "search": 3}.

    `synchronize` is called before a phase's end is measured, to wait for work that a GPU still does for it; else that
    would count as the next phase's. After an error nothing is waited for.
    """

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        self._synchronize = synchronize
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        beat()
        begun = time.perf_counter()
        try:
            yield
            self._synchronize()
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - begun

    def take(self) -> dict[str, float]:
        """Seconds by name since the last take."""
        taken, self._seconds = self._seconds, {}
        return taken


# Statistics

SCHEMA = 1
MEASURED = ("seconds", "memory_gib", "workers", "servers", "price_per_hour")
OPTIONAL: Mapping[str, Any] = {"workers": {}, "servers": {}, "price_per_hour": 0.0}  # not in the file where they are so
WAIT = "rollout_wait"
# A reward beside "overall", which is the weighted mean in every run, and in evaluations too: the scales of std, pca and
# l2 are others, and change from step to step.
AS_TRAINED = "overall as trained"
# In `seconds`: the whole step, and parts of the rollout.
NO_PHASES = ("step", "generate", "search", WAIT)


class Summary(TypedDict):
    """How a reward is distributed over a step's episodes."""

    mean: float
    std: float
    """Population standard deviation: [0, 1] gives 0.5."""
    min: float
    p25: float
    median: float
    p75: float
    max: float


class Groups(TypedDict):
    """Groups: a group is the episodes of one question."""

    total: int
    """Groups that were trained on, flat ones included."""
    flat: int
    """Groups whose episodes all have the same reward, which teach nothing."""
    replaced: int
    """Groups of spare questions, played in place of flat ones."""


class EpisodeFigures(TypedDict):
    """The episodes that were trained on; means over them unless stated otherwise."""

    count: int
    well_formed: float
    """Share that searched, ended with an answer and broke no rule."""
    searches: float
    distinct_queries: NotRequired[float]
    """Distinct queries over searches: 1 where no two were alike, 0 without any. Steps of older versions lack it."""
    turns: float
    sampled_tokens: float
    """Tokens that the policy sampled."""
    tokens: float
    """All tokens: the prompt's, the policy's and the tool's."""


@dataclass(frozen=True)
class StepStats:
    """One step of training."""

    step: int
    """Number of the step, as in the file's name."""
    adapter: str
    """Version of the adapter that sampled the episodes, such as v000007."""
    rewards: Mapping[str, Sequence[float | None]]
    """Values of each reward by name, one per episode, in the order of the episodes' ids; None where a reward does not
    exist. First "overall", the weighted mean, as in evaluations; last, with --combine std, pca or l2 or with --overlong
    punish, "overall as trained", which the update learnt from."""
    groups: Groups
    """Number of groups, and how many taught nothing."""
    episodes: EpisodeFigures
    """Length and form of the episodes."""
    stops: dict[str, int]
    """Number of episodes by what ended them."""
    faults: dict[str, int]
    """Number of protocol faults by kind, over all turns."""
    training: dict[str, float]
    """The update, as means over its tokens: policy_loss, kl (to the reference), entropy, clip_low_share,
    clip_high_share, ratio_mean, ratio_min, ratio_max (trained over sampling policy), mismatch_kl, mismatch_mean_abs,
    corrected_share (trainer's against sampler's log-probabilities), grad_norm (before clipping), learning_rate,
    tokens, episodes, taught (those with an advantage or a credit), micro_batches; likelihood_gain (of tokens that were
    rewarded, by this update: `likelihood_gain` in forage/grpo/update.py); excess, excess_error (by how much tokens are
    likelier than draws from the policy); whatever else the loss reports."""
    evaluation: dict[str, Interval] | None = None
    """Each reward on held-out questions, at steps with an evaluation."""
    flat_by_reward: dict[str, int] = field(default_factory=dict)
    """By reward: groups whose episodes all have the same value of it; groups without the reward don't count. Of a
    reward for what was found, such as mrr, these are the questions whose passages made no difference."""
    notes: list[str] = field(default_factory=list)
    """Warnings, one sentence each, without times, which differ from run to run."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds by phase: rollout (which includes generate and search), rewards, logprobs, backward, publish,
    evaluation. With --rollouts service also rollout_wait, a part of rollout and evaluation: the trainer waited for
    episodes. In older versions also step, the whole."""
    memory_gib: float = 0.0
    """Peak memory of the GPU, or without one of the process."""
    workers: Mapping[str, int] = field(default_factory=dict)
    """By worker: how many of the episodes it played."""
    servers: Mapping[str, int] = field(default_factory=dict)
    """By address of the server: how many of the episodes it sampled."""
    price_per_hour: float = 0.0
    """As given by --price-per-hour."""
    schema: int = SCHEMA
    """Version of this format."""

    @cached_property
    def summary(self) -> dict[str, Summary]:
        """Summary of each reward's distribution over the episodes that have it."""
        known = {name: [v for v in values if v is not None] for name, values in self.rewards.items()}
        return {name: summarised(values) for name, values in known.items() if values}

    @property
    def taught(self) -> bool:
        """Whether any episode had an advantage or a credit; older versions did not write how many."""
        return self.training.get("taught", self.groups["total"] - self.groups["flat"]) > 0


def summarised(values: Sequence[float]) -> Summary:
    """Mean, deviation and interpolated quantiles. Example: [0, 1] has mean .5, std .5, p25 .25, median .5."""
    low, p25, median, p75, high = np.quantile(values, (0, 0.25, 0.5, 0.75, 1)).tolist()
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return {"mean": mean, "std": std, "min": low, "p25": p25, "median": median, "p75": p75, "max": high}


def step_seconds(stats: StepStats) -> float:
    """Seconds the step took; where that figure is missing, the sum of its phases."""
    return stats.seconds.get("step", sum(phases_of(stats).values()))


def phases_of(stats: StepStats) -> dict[str, float]:
    """Seconds of the phases alone, no part of which counts twice."""
    return {name: seconds for name, seconds in stats.seconds.items() if name not in NO_PHASES}


def to_row(stats: StepStats) -> dict[str, Any]:
    """The JSON object."""
    names = ["schema", *(item.name for item in fields(stats) if item.name != "schema")]
    row = {name: getattr(stats, name) for name in names}
    values = {name: row.pop(name) for name in MEASURED}
    measured = {"measured": {name: value for name, value in values.items() if value or name not in OPTIONAL}}
    # People read the files too, so the summary comes right after the values it is computed from.
    place = list(row).index("rewards") + 1
    return dict([*list(row.items())[:place], ("summary", stats.summary), *list(row.items())[place:]]) | measured


def reproducible(stats: StepStats) -> dict[str, Any]:
    """The fields that a second run of the same seed must reproduce bit for bit."""
    return {name: value for name, value in to_row(stats).items() if name != "measured"}


def stats_path(run_dir: Path, step: int) -> Path:
    return run_dir / f"training_stats_{step}.json"


def write_stats(run_dir: Path, stats: StepStats) -> Path:
    """Write a step's file; a step that is repeated replaces its file. NaN and infinity are refused."""
    try:
        row = {json.dumps(k): json.dumps(v, ensure_ascii=False, allow_nan=False) for k, v in to_row(stats).items()}
    except ValueError as error:
        raise UserError(
            f"step {stats.step}: {error}; training diverged: lower the learning rate, or mend a reward"
        ) from error
    text = "{\n" + ",\n".join(f"{name}: {value}" for name, value in row.items()) + "\n}\n"
    with replacing(stats_path(run_dir, stats.step)) as file:
        file.write(encodable(text))
    return stats_path(run_dir, stats.step)


def read_stats(run_dir: Path, before: float = math.inf) -> list[StepStats]:
    """All steps of a run, or those before one, in numerical order."""
    return [_read(stats_path(run_dir, step), step) for step in steps_there(run_dir) if step < before]


def steps_there(run_dir: Path) -> list[int]:
    """The steps that have a file, in numerical order."""
    found = (re.fullmatch(r"training_stats_(\d+)\.json", path.name) for path in run_dir.glob("training_stats_*.json"))
    return sorted(int(match[1]) for match in found if match)


def _read(path: Path, step: int) -> StepStats:
    try:
        row = json.loads(path.read_bytes(), parse_constant=_refuse)
        if row["step"] != step:
            raise ValueError(f"it says step {row['step']}")
        row |= {**OPTIONAL, **row["measured"]}
        return typed(StepStats, {item.name: row[item.name] for item in fields(StepStats)})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is broken ({type(error).__name__}: {error}); delete it to continue without it"
        ) from error


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not valid JSON")


# Evaluations; the last one is of the final adapter, which no step samples with

PLAIN_RAG = "plain_rag_rewards.json"  # beside them, what needs no policy


def write_evaluations(run_dir: Path, evaluations: Mapping[int, Mapping[str, Interval]]) -> None:
    """Write evaluations.json: by adapter version, each reward's mean on the held-out questions."""
    with replacing(run_dir / "evaluations.json") as file:
        json.dump(evaluations, file, indent=1, allow_nan=False)


def read_evaluations(run_dir: Path) -> dict[int, dict[str, Interval]]:
    path, kind = run_dir / "evaluations.json", dict[int, dict[str, Interval]]
    return read_manifest_as(kind, path, "delete it to evaluate again") if path.exists() else {}


def write_plain_rag(run_dir: Path, values: Mapping[str, Mapping[str, float]]) -> None:
    """By reward and question, what a search for the question itself earned."""
    write_manifest(run_dir / PLAIN_RAG, values)


def read_plain_rag(run_dir: Path) -> dict[str, dict[str, float]]:
    """The same, where that was measured."""
    path = run_dir / PLAIN_RAG
    return read_manifest_as(dict[str, dict[str, float]], path, "delete it") if path.exists() else {}


def by_plain_rag(run_dir: Path) -> dict[str, Interval]:
    """Its mean on the held-out questions, by reward."""
    return {name: bootstrapped([*each.values()]) for name, each in read_plain_rag(run_dir).items()}


def before_beside_after(run_dir: Path) -> list[str]:
    """A line for each held-out reward: before and after training, and that of plain RAG, with their intervals."""
    known, plain = read_evaluations(run_dir), by_plain_rag(run_dir)
    if len(known) < 2:
        return []
    first, last = known[min(known)], known[max(known)]
    rows = {name: [first[name], last[name], *([plain[name]] if name in plain else [])] for name in first}
    heads = [f"{head:24}" for head in ("before", "after", "plain RAG")]
    cells = {name: [figure(each).ljust(24) for each in row] for name, row in rows.items()}
    return [f"{name:25}{''.join(row)}" for name, row in ({"held out": heads} | cells).items()]


def verdict_on_run(run_dir: Path, before: Mapping[str, Episode], after: Mapping[str, Episode]) -> list[str]:
    """What the run's first and last evaluation show of the reward, and the last one beside plain RAG, in words; nothing
    where their episodes are gone."""
    ours, data = "the trained policy", data_of(run_dir)
    said = verdicts(ours, "the one before training", "overall", rewards_of(after), rewards_of(before), data)
    for name, plain in [*read_plain_rag(run_dir).items()][:1]:
        said += verdicts(ours, "plain RAG", name, rewards_of(after, name), plain, data)
    return said


def verdicts(
    one: str, other: str, measure: str, first: Mapping[str, float], second: Mapping[str, float], data: Path | None
) -> list[str]:
    """What the figures of the questions that both have show; nothing if there is none."""
    both = sorted(first.keys() & second.keys())  # so that the draws are the same, whichever episode ended first
    asked = questions_of(data, both, "eval")
    documents = [asked[name].document if name in asked else name for name in both]
    return [verdict(one, other, measure, [first[name] - second[name] for name in both], documents)] if both else []


def rewards_of(episodes: Mapping[str, Episode], name: str = "overall") -> dict[str, float]:
    """By question, a reward of its episode, where it has it."""
    found = {question: {"overall": episode.reward, **episode.rewards} for question, episode in episodes.items()}
    return {question: rewards[name] for question, rewards in found.items() if name in rewards}


def first_and_last(run_dir: Path) -> tuple[dict[str, Episode], dict[str, Episode]]:
    """The episodes of the first and the last evaluation, by question; none without two of them."""
    known = read_evaluations(run_dir)
    return (evaluated(run_dir, min(known)), evaluated(run_dir, max(known))) if len(known) > 1 else ({}, {})


def evaluated(run_dir: Path, version: int) -> dict[str, Episode]:
    """By held-out question, its episode: the first where two workers played it."""
    episodes = list(episodes_in(run_dir / "episodes" / f"{version:06d}-eval"))
    return {episode.question_id: episode for episode in reversed(episodes)}


def one_question(run_dir: Path, before: Mapping[str, Episode], after: Mapping[str, Episode]) -> list[str]:
    """A held-out question's episodes in the first and the last evaluation, in words, if the reward rose for any.

    Of the questions for which it rose, the one with the median rise: neither the best case nor the worst.
    """
    rises = {name: after[name].reward - before[name].reward for name in before.keys() & after.keys()}
    rose = sorted((rise, name) for name, rise in rises.items() if rise > 0)
    if not rose:
        return []
    name = rose[len(rose) // 2][1]
    asked = questions_of(data_of(run_dir), [name], "eval").get(name)
    lines = [f"the question with the median rise: {asked.question if asked else name}"]
    for when, episode in (("before", before[name]), ("after", after[name])):
        queries = " | ".join(search.query for search in episode.searches)
        answer = f", answered {episode.answer!r}" if episode.answer else ""
        lines.append(f"  {when}, {episode.reward:.3f}: searched for {queries}{answer}")
    return lines


def data_of(folder: Path) -> Path | None:
    """The data folder that a run's run.json or a warm start's config.json names; None where neither can be read."""
    for name, *keys in (("run.json", "options", "rollout", "data"), ("config.json", "options", "data")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            return Path(reduce(getitem, keys, json.loads((folder / name).read_text())))
    return None


def questions_of(data: Path | None, ids: Collection[str], split: str = "train") -> dict[str, Question]:
    """The questions by id. None where the data folder is gone, damaged or just being made again."""
    try:
        return {q.id: q for q in read_questions(data / f"{split}.jsonl") if q.id in ids} if data else {}
    except (UserError, OSError, ValueError):
        return {}


# Progress of training: what is printed after each step, and whether the trainer waits for its workers.

# Steps whose median predicts the time left, and that advice is about.
LAST = 20
MUCH = 0.2  # of the time: a shorter wait is not told


def print_step(history: Sequence[StepStats], last: int, sampled: str = "") -> None:
    """Print the last step's line, and a line for whatever is to be noted about it.

    `sampled`: how the episodes of steps are sampled, in the words of the line: unlike those of evaluations.
    """
    stats = history[-1]
    say("; ".join(parts_of_line(history, last, sampled)))
    for note in (*lessons(stats), *stats.notes):
        say(f"note: {note}")


def parts_of_line(history: Sequence[StepStats], last: int, sampled: str) -> Iterator[str]:
    """Example: step 12 (13 of 500), sampled at T 1: overall 0.512, mrr 0.400; 34 s (rollout 20, backward 9); 4 h 35 min
    left."""
    stats = history[-1]
    rewards = ", ".join(f"{name} {summary['mean']:.3f}" for name, summary in stats.summary.items())
    yield f"step {stats.step} ({stats.step + 1} of {last}){sampled}: {rewards}"
    if stats.seconds:
        longest = sorted(phases_of(stats).items(), key=lambda item: -item[1])[:3]
        yield f"{step_seconds(stats):.0f} s ({', '.join(f'{name} {seconds:.0f}' for name, seconds in longest)})"
    if left := seconds_left(history, last):
        yield f"{duration(left)} left"


def cost(history: Sequence[StepStats]) -> str:
    """What all steps took together.

    Example: 512 episodes: 6,401 tokens sampled, 5,900 learnt from; 4 min 20 s (rollout 48%, backward 22%, logprobs
    19%), at most 2.1 GiB, 0.18 at the prices given.
    """
    count = sum(stats.episodes["count"] for stats in history)
    sampled = sum(stats.episodes["count"] * stats.episodes["sampled_tokens"] for stats in history)
    learnt, took = sum(stats.training.get("tokens", 0.0) for stats in history), sum(map(step_seconds, history))
    phases = Counter[str]()
    for stats in history:
        phases.update(phases_of(stats))
    longest = ", ".join(f"{name} {seconds / max(took, 1e-9):.0%}" for name, seconds in phases.most_common(3))
    most = max(stats.memory_gib for stats in history)
    tokens = f"{sampled:,.0f} tokens sampled, {learnt:,.0f} learnt from"
    paid = sum(step_seconds(stats) * stats.price_per_hour for stats in history) / 3600
    money = f", {paid:.2f} at the prices given" if paid else ""
    return f"{count:,.0f} episodes: {tokens}; {duration(took)} ({longest}), at most {most:.1f} GiB{money}"


def lessons(stats: StepStats) -> list[str]:
    """What kept the step from teaching anything, if something did, and what to do."""
    total, flat = stats.groups["total"], stats.groups["flat"]
    if not stats.episodes["well_formed"]:
        return [
            "no episode keeps to the protocol (a search, then an answer); teach it by a warm start (sft_train.py) or a "
            "longer one"
        ]
    if flat == total and not stats.taught:
        return [f"{flat} of {total} groups flat (all episodes of a question earned the same): no reward to learn from"]
    return []


def seconds_left(history: Sequence[StepStats], last: int) -> float:
    """Seconds that the remaining steps take at the median of the last ones, without evaluations.

    Example: steps 0 to 2 of 10 took 10, 12 and 50 seconds, so the 7 more, 3 to 9, take 84.
    """
    took = [step_seconds(stats) - stats.seconds.get("evaluation", 0.0) for stats in history[-LAST:]]
    return max(0, last - 1 - history[-1].step) * statistics.median(took)


def advice(history: Sequence[StepStats]) -> str:
    """One sentence on the last steps, but never on the run's first, in which workers start; empty for a short wait.

    Example: two steps of 10 s, in which the trainer waited 6 s and 4 s: the trainer waits 50 % of the time for
    episodes: add a rollout worker, or raise --max-staleness.
    """
    steps = [stats for stats in history[1:][-LAST:] if stats.workers]
    waited = math.fsum(stats.seconds.get("rollout_wait", 0.0) for stats in steps)
    share = waited / (math.fsum(step_seconds(stats) for stats in steps) or 1.0)
    if share < MUCH:
        return ""
    says = f"the trainer waits {100 * share:.0f} % of the time for episodes"
    return f"{says}: add a rollout worker, or raise --max-staleness"
