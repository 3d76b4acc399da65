"""What reinforcement adds: policies that only search, trained in several ways, beside controls that need no training.

    python -m bench.controls --data runs/medquad/data --work runs/controls                         on the dev questions
    python -m bench.controls --data runs/medquad/data --work runs/controls --held-out              once all is chosen

All arms start from one weak warm start and play the same episodes: a question, and one search (--max-turns 1). Choices
are made on dev questions, a twentieth of the training questions that no arm trains on, split by document. --held-out
takes 1,000 questions of eval.jsonl instead, none of those that earlier designs were judged on.

Every step can be killed and run again. What is measured is kept in --rows, a line for each look at the questions, so
that the table can be made without the policies, on another machine too. Prints Markdown.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.expansion import best_rm3, best_table, key_of, rm3_queries
from forage.agent.agent import searched_for
from forage.agent.episode import read_episodes
from forage.cli import run_script
from forage.data.records import Question, read_answerable
from forage.data.relevance import split_by_document
from forage.errors import UserError
from forage.evaluation.measures import grades_of, retrieval_measures
from forage.evaluation.outcomes import OutcomeLog
from forage.evaluation.setting import choose
from forage.files import replacing_folder, write_jsonl
from forage.metrics import bootstrapped, clear, span
from forage.runs.stats import NO_PHASES, read_stats
from forage.store.opening import open_store

DEV_SHARE, DEV_SEED = 0.05, 20
LOOKED_AT = 200  # held-out questions on which earlier designs were judged: the first of evaluate.py's order
HELD_OUT = 1000  # of the others
MEASURES = {"mrr@10": "MRR@10", "recall@5": "recall@5", "ndcg@10": "nDCG@10"}
WEIGHT = 2  # how often the question comes before the query
WARM, START, IMITATION, GRPO, RAW = "warm", "short imitation", "imitation", "GRPO, credit by words", "the question"
AGENT = (
    "--mode", "sparse", "--k", "5", "--question-weight", str(WEIGHT), "--max-turns", "1", "--max-turn-tokens", "40",
    "--force-search", "--task", "Answer the medical question from a library",
)  # fmt: skip
TEACHER = ("--guess", "words", "--guess-words", "8", "--batch-size", "8")
DEMONSTRATED = (*TEACHER, "--num-demonstrations", "4000", "--eval-share", "0.02", "--eval-every", "60")


@dataclass(frozen=True)
class Arm:
    """A way to train: which arm's policy it starts from, and the script with its options."""

    start: str
    script: str
    flags: tuple[str, ...]
    seeded: bool = True
    """Trained once for each seed; otherwise once for all."""

    @property
    def trains_by_reward(self) -> bool:
        return self.script.endswith("search_gain")


# What follows short imitation takes about as long whichever it is, some 25 minutes on one core, a fifth more than short
# imitation itself.
ARMS: Mapping[str, Arm] = {
    WARM: Arm("", "sft_train", (
        *AGENT, *TEACHER, "--num-demonstrations", "800", "--max-steps", "24", "--eval-every", "24"), seeded=False),
    START: Arm(WARM, "sft_train", (*DEMONSTRATED, "--max-steps", "240")),
    IMITATION: Arm(START, "sft_train", (*DEMONSTRATED, "--max-steps", "300", "--learning-rate", "5e-4")),
    GRPO: Arm(START, "bench.search_gain", (
        "--engine", "local", "--concurrency", "8", "--temperature", "1", "--eval-every", "0", "--batch-size", "8",
        "--num-rollouts", "16", "--learn-from", "8", "--clip-high", "0.28", "--credit", "words", "--word-cost", "0.005",
        "--learning-rate", "3e-4", "--max-steps", "40")),
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The comparison."""

    data: Path = Path("runs/medquad/data")
    """Folder that data_prep.py wrote; its store needs no embedder."""
    work: Path = Path("runs/controls")
    """Folder for the split, policies, runs and evaluations."""
    rows: Path = Path("bench/controls.jsonl")
    """File of what was measured."""
    only: tuple[str, ...] = ()
    """Train and measure only these arms; left out: all."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Seeds of what is trained."""
    held_out: bool = False
    """Measure on held-out questions instead of dev ones."""
    figure: Path | None = None
    """Picture to draw of the table."""

    def check(self) -> None:
        unknown = [name for name in self.only if name not in ARMS]
        if unknown:
            raise UserError(f"--only {', '.join(unknown)}: choose among {', '.join(map(repr, ARMS))}")
        if not self.seeds:
            raise UserError("--seeds is empty; give one or more numbers")

    @property
    def split(self) -> str:
        return "held-out" if self.held_out else "dev"

    @property
    def train_data(self) -> Path:
        """Training questions without the dev ones, which are its eval.jsonl."""
        return self.work / "data"

    @property
    def played_data(self) -> Path:
        """The folder whose eval.jsonl is measured."""
        return self.work / "held-out" if self.held_out else self.train_data


@dataclass(frozen=True)
class Row:
    """What was measured of one way to search."""

    split: str
    date: str
    arm: str
    seed: int
    temperature: float
    questions: str
    """Digest of the questions' ids."""
    measures: dict[str, list[float]]
    """By question."""
    well_formed: float = 1.0
    tokens: int = 0
    """Tokens of the policy that training learnt from, those of the arms it starts from included."""
    minutes: float = 0.0
    """Minutes of training, those included too."""


def main(options: Options) -> None:
    options.check()
    prepare(options)
    questions = read_answerable(options.played_data / "eval.jsonl")
    rows = [kept(options, questions, name, 0, 0.0, partial(untrained, options, name)) for name in CONTROLS]
    for name in options.only or ARMS:
        for seed in options.seeds if ARMS[name].seeded else options.seeds[:1]:
            for temperature in (0.0, 1.0):
                measure = partial(played, options, name, seed, temperature)
                rows.append(kept(options, questions, name, seed, temperature, measure))
    print(table(rows, len(questions), options.split))
    if options.figure:
        draw(rows, len(questions), options.split, options.figure)


def kept(
    options: Options, questions: Sequence[Question], name: str, seed: int, temperature: float,
    measure: Callable[[Sequence[Question]], dict[str, Any]],
) -> Row:  # fmt: skip
    """The row in --rows, or a new one that is put there."""
    digest = hashlib.sha256(" ".join(question.id for question in questions).encode()).hexdigest()[:16]
    lines = options.rows.read_text().splitlines() if options.rows.exists() else []
    key = (options.split, name, seed, temperature)
    rows = [Row(**json.loads(line)) for line in lines]
    found = [row for row in rows if (row.split, row.arm, row.seed, row.temperature) == key]
    if not found:
        new = Row(options.split, time.strftime("%Y-%m-%d"), name, seed, temperature, digest, **measure(questions))
        with options.rows.open("a") as file:
            file.write(json.dumps(asdict(new), separators=(",", ":")) + "\n")
        return new
    if found[0].questions != digest:
        raise UserError(f"{options.rows}: {name} was measured on other questions; give another file as --rows")
    return found[0]


def prepare(options: Options) -> None:
    """Split off the dev questions, and make the policy that all arms come from."""
    if not options.train_data.exists():
        train, dev = split_by_document(read_answerable(options.data / "train.jsonl"), DEV_SHARE, DEV_SEED)
        write_data(options, options.train_data, train, dev)
    if not options.played_data.exists():
        every = read_answerable(options.data / "eval.jsonl")
        looked_at = {question.id for question in choose(every, LOOKED_AT, 0)}
        unseen = [question for question in every if question.id not in looked_at]
        write_data(options, options.played_data, [], choose(unseen, HELD_OUT, DEV_SEED))
    policy = options.work / "policy"
    if not policy.exists():
        run("create_lora_model", "--no-quantize", "--output-dir", policy)


def write_data(options: Options, path: Path, train: Sequence[Question], played: Sequence[Question]) -> None:
    """Questions to train on and to play, in a folder with the same store."""
    with replacing_folder(path) as folder:
        write_jsonl(folder / "train.jsonl", train)
        write_jsonl(folder / "eval.jsonl", played)
        (folder / "store").symlink_to((options.data / "store").resolve())


# Without training

store_of = cache(open_store)


def untrained(options: Options, name: str, questions: Sequence[Question]) -> dict[str, Any]:
    return {"measures": measured(options, questions, CONTROLS[name](options, questions))}


def search(options: Options, texts: Sequence[str]) -> list[list[str]]:
    """Ids of the 10 best chunks for each text."""
    hits_QK = store_of(options.data / "store").search(texts, 10, "sparse")
    return [[hit.chunk_id for hit in hits] for hits in hits_QK]


def measured(options: Options, questions: Sequence[Question], texts: Sequence[str]) -> dict[str, list[float]]:
    """Each measure by question."""
    arrays = retrieval_measures(search(options, texts), grades_of(questions), (5, 10))
    return {name: np.round(arrays[name], 3).tolist() for name in MEASURES}


def themselves(options: Options, questions: Sequence[Question]) -> list[str]:
    return [question.question for question in questions]


def by_rm3(options: Options, questions: Sequence[Question]) -> list[str]:
    """Its settings are chosen on the dev questions."""
    store = store_of(options.data / "store")
    dev = read_answerable(options.train_data / "eval.jsonl")
    return rm3_queries(store, questions, best_rm3(store, dev, partial(search, options)))


def by_table(options: Options, questions: Sequence[Question]) -> list[str]:
    """What to say by how a question begins, chosen on training questions."""
    said = best_table(read_answerable(options.train_data / "train.jsonl"), partial(search, options), WEIGHT)
    return [searched_for(question, said[key_of(question.question, said)], WEIGHT) for question in questions]


CONTROLS: Mapping[str, Callable[[Options, Sequence[Question]], list[str]]] = {
    RAW: themselves,
    "RM3": by_rm3,
    "table of telling words": by_table,
}


# With training


def folder_of(options: Options, name: str, seed: int) -> Path:
    """Where an arm's policy is."""
    return options.work / (f"{slug(name)}-{seed}" if ARMS[name].seeded else slug(name))


def train(options: Options, name: str, seed: int) -> Path:
    """Train the arm, after those that it starts from; nothing is done twice."""
    arm, folder = ARMS[name], folder_of(options, name, seed)
    start = train(options, arm.start, seed) if arm.start else options.work / "policy"
    if not (folder / "trained").exists():
        output = "--run-dir" if arm.trains_by_reward else "--output-dir"
        run(arm.script, "--data", options.train_data, "--policy", start, output, folder, "--seed", seed, *arm.flags)
        (folder / "trained").touch()
    return folder


def cost(options: Options, name: str, seed: int) -> tuple[int, float]:
    """(tokens that the policy learnt from, minutes) of an arm and those that it starts from."""
    arm, folder = ARMS[name], folder_of(options, name, seed)
    before = cost(options, arm.start, seed) if arm.start else (0, 0.0)
    if arm.trains_by_reward:
        stats = read_stats(folder)
        tokens = sum(step.training["tokens"] for step in stats)
        seconds = sum(took for step in stats for phase, took in step.seconds.items() if phase not in NO_PHASES)
    else:
        last = json.loads((folder / "stats.jsonl").read_text().splitlines()[-1])
        shown = [episode.sampled for episode in read_episodes(folder / "demonstrations.jsonl")]
        size = int(arm.flags[arm.flags.index("--batch-size") + 1])
        tokens, seconds = last["step"] * size * sum(shown) / len(shown), last["seconds"]
    return before[0] + round(tokens), before[1] + seconds / 60


def played(options: Options, name: str, seed: int, temperature: float, questions: Sequence[Question]) -> dict[str, Any]:
    """The arm's queries on all questions, greedily or sampled, once it is trained."""
    policy, label = train(options, name, seed), slug(name)
    output = options.work / "eval" / f"{label}-{seed}-{options.split}-T{temperature:g}"
    run(
        "evaluate", "--data", options.played_data, "--policy", f"{label}={policy}", "--systems", "single",
        "--eval-questions", 0, "--temperature", temperature, "--seed", seed, "--engine", "local",
        "--concurrency", 64, "--output-dir", output,
    )  # fmt: skip
    results = OutcomeLog(output, f"{label}/single").results()
    episodes = [results[question.id].episode for question in questions]
    # An episode without a search has found nothing; the question is not searched for in its place.
    texts = [
        searched_for(question, episode.searches[0].query, WEIGHT) if episode.searches else ""
        for question, episode in zip(questions, episodes, strict=True)
    ]
    tokens, minutes = cost(options, name, seed)
    formed = sum(episode.well_formed for episode in episodes) / len(episodes)
    return {
        "measures": measured(options, questions, texts), "well_formed": formed, "tokens": tokens, "minutes": minutes
    }  # fmt: skip


def run(script: str, *arguments: object) -> None:
    """A script of this repository, in a process of its own."""
    module = [f"{script}.py"] if "." not in script else ["-m", script]
    command = [sys.executable, *module, *map(str, arguments)]
    print("$", " ".join(command[1:]), file=sys.stderr, flush=True)
    if subprocess.run(command, stdout=2, check=False).returncode:
        raise UserError(f"{script} failed, as it says above; what was done before is kept")


def slug(name: str) -> str:
    """Example: "GRPO, credit by words" gives grpo_credit_by_words."""
    return "_".join(name.lower().replace(",", "").split())


# The table


def table(rows: Sequence[Row], questions: int, split: str) -> str:
    """Markdown: each way's measures, and its paired differences: in MRR@10 from the question and from imitation, and in
    recall@5 from the policy it starts from."""
    raw = next(row for row in rows if row.arm == RAW)
    head = [
        "", "seed", "T", *MEASURES.values(), "over the question", "over imitation", "recall@5 over its start", "format",
        "tokens", "minutes",
    ]  # fmt: skip
    lines = [f"{questions} {split} questions:", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        same = {other.arm: other for other in rows if (other.seed, other.temperature) == (row.seed, row.temperature)}
        started = same.get(ARMS[row.arm].start) if row.arm in ARMS else None
        cells = [
            row.arm, f"{row.seed or ''}", f"{row.temperature:g}" if row.seed else "",
            *(f"{np.mean(row.measures[name]):.3f}" for name in MEASURES),
            over(row, raw) if row is not raw else "",
            over(row, same[IMITATION]) if IMITATION in same and row.arm not in (WARM, START, IMITATION) else "",
            over(row, started, "recall@5") if started else "",
            *((f"{row.well_formed:.3f}", f"{row.tokens:,}", f"{row.minutes:.0f}") if row.seed else ("", "", "")),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def over(row: Row, other: Row, measure: str = "mrr@10") -> str:
    """The paired difference with its interval; bold where that excludes zero."""
    first, second = (np.array(each.measures[measure]) for each in (row, other))
    found = bootstrapped((first - second).tolist())
    mean = f"**{found['mean']:+.3f}**" if clear(found) else f"{found['mean']:+.3f}"
    return f"{mean} ({span(found)})"


def draw(rows: Sequence[Row], questions: int, split: str, path: Path) -> None:
    """MRR@10 of each way: greedily (filled) and at temperature 1 (hollow), a mark for each seed, with intervals."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row.arm for row in rows))
    figure = Figure(figsize=(8, 0.5 * len(names) + 1.2), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        found, filled = bootstrapped(row.measures["mrr@10"]), "white" if row.temperature else None
        place = names.index(row.arm) + (0.14 * (row.seed - 2) + 0.06 * row.temperature if row.seed else 0)
        bars = [[found["mean"] - found["low"]], [found["high"] - found["mean"]]]
        color = "C1" if row.temperature else "C0"
        axes.errorbar([found["mean"]], [place], xerr=bars, fmt="o", color=color, markerfacecolor=filled)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel(f"MRR@10 on {questions:,} {split} questions, 95 % intervals; filled: greedy, hollow: T = 1")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    run_script(main, __doc__)
