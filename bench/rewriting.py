"""What reinforcement adds to a query rewriter: PPO and GRPO from one warm start, by seed, against cheaper rewrites.

    python -m bench.rewriting --data runs/medquad/data --work runs/rewriter

The questions need two searches (data_prep.py --second-hop 6); the rewriter is given the question and the titles that it
finds. Both algorithms get the same questions, number of rewrites, reward and updates; they differ in what a rewrite is
compared with: a value model's estimate, or the question's other rewrites. The held-out questions are ones that
bench.controls has never played.

A killed run resumes where it stopped. Measurements are kept in --rows, so the table can be printed without the runs.
Prints Markdown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.controls import DEV_SEED, PLAYED, SEEN, Row, over, run
from bench.expansion import WHOLE, whole_documents
from forage.arguments import parse, run_script
from forage.data.records import read_answerable
from forage.data.rewriter_data import export_rewriter_data
from forage.evaluation.setting import choose
from forage.extras.rewriter.actors import load_tokenizer
from forage.extras.rewriter.data import read_data, titles
from forage.extras.rewriter.evaluation import measure
from forage.extras.rewriter.options import Options as TrainOptions
from forage.files import json_lines, replacing_folder, write_jsonl
from forage.store.opening import open_store

HELD_OUT = 1000  # questions
RAW, TITLE, SCRIPT, WARM = "the question", "the first title found", "that, and what is asked", "warm start"
ASKED = (
    "--instruction", "Write words for a search.", "--titles", "3", "--rewrite", "replace", "--max-new-tokens", "16",
    "--report-to", "none",
)  # fmt: skip
WARMED = ("--warm-steps", "30", "--max-steps", "0", "--eval-questions", "50")
IMITATION = "imitation"  # a warm start that goes on; 3,200 texts, as the others learn twice from 1,600 rewrites
IMITATED = ("--warm-steps", "400", "--max-steps", "0", "--eval-questions", str(HELD_OUT))
TRAINED = (
    "--backend", "own", "--reward", "gain", "--temperature", "1", "--top-p", "1", "--batch-size", "16",
    "--num-rollouts", "4", "--ppo-epochs", "2", "--kl-coef", "0.001", "--learning-rate", "3e-4", "--save-every", "10",
    "--eval-questions", str(HELD_OUT),
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The comparison."""

    data: Path = Path("runs/medquad/data")
    """Folder that data_prep.py wrote with --embedder none and --second-hop 6."""
    work: Path = Path("runs/rewriter")
    """Folder for the questions, the warm start and the runs."""
    rows: Path = Path("bench/rewriting.jsonl")
    """File of what was measured."""
    algorithms: tuple[str, ...] = ("ppo", "grpo", IMITATION)
    """Ways to train, to be compared."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Seeds of each."""
    max_steps: int = 100
    """Updates of each."""


def main(options: Options) -> None:
    rows = [Row(**row) for _, row in json_lines(options.rows)] if options.rows.exists() else []
    if not (data := options.work / "data").exists():
        prepare(options, data)
    for algorithm in options.algorithms:
        for seed in options.seeds:
            known = {(row.arm, row.seed) for row in rows}
            if (algorithm, seed) not in known:
                rows += [row for row in measured(options, algorithm, seed) if (row.arm, row.seed) not in known]
                write_jsonl(options.rows, rows)
    print(table(rows))


def prepare(options: Options, path: Path) -> None:
    """The questions behind a name as the rewriter reads them."""
    train, held_out = (read_answerable(options.data / "second_hop_6" / f"{name}.jsonl") for name in ("train", "eval"))
    with replacing_folder(path) as folder:
        chunks = open_store(options.data / "store").chunks
        export_rewriter_data(folder, chunks, train, choose(held_out, HELD_OUT, DEV_SEED, SEEN + PLAYED))


def measured(options: Options, algorithm: str, seed: int) -> Iterator[Row]:
    """Train, and measure what was trained and what it is compared with."""
    start, folder = options.work / "start", options.work / f"{algorithm}-{seed}"
    given = ("--data", options.work / "data", *ASKED)
    if not start.exists():
        run("train_ppo", *given, "--run-dir", options.work / "warm", "--output-dir", start, *WARMED)
    by_reward = ("--base-model", start, "--algorithm", algorithm, "--max-steps", options.max_steps, *TRAINED)
    flags = (
        *given, "--seed", seed, "--run-dir", folder, "--output-dir", f"{folder}-model",
        *(IMITATED if algorithm == IMITATION else by_reward),
    )  # fmt: skip
    if not (folder / "evaluation.jsonl").exists():
        run("train_ppo", *flags)
    trained = replace(parse(TrainOptions, [str(flag) for flag in flags]), k=10)
    data = read_data(trained, load_tokenizer(str(start)))
    asked = [row.query for row in data.held_out]
    first = [(titles(data.texts, data.search, query) or [query])[0] for query in asked]
    scripted = [f"{title} {query.rpartition(': ')[2]}" for title, query in zip(first, asked, strict=True)]
    metrics = folder / "metrics.jsonl"  # a warm start has none
    minutes = sum(update["seconds"] for _, update in json_lines(metrics)) / 60 if metrics.exists() else 0.0
    *_, warm, learnt = (found["searched"] for _, found in json_lines(folder / "evaluation.jsonl"))
    ways = {RAW: asked, TITLE: first, SCRIPT: scripted, WHOLE: asked, WARM: warm, algorithm: learnt}
    if algorithm == IMITATION:  # the warm start that it knows is itself
        del ways[WARM]
    for arm, searched in ways.items():
        search = partial(by_whole_documents, options) if arm == WHOLE else data.search
        five, ten = (measure(arm, data.held_out, searched, search, k).values for k in (5, 10))
        measures = {"recall@5": five["recall"], "nDCG@10": ten["ndcg"], "MRR@10": ten["mrr"]}
        rounded = {name: np.round(values, 3).tolist() for name, values in measures.items()}
        of = (seed, round(minutes, 1)) if arm == algorithm else (0, 0.0)
        yield Row("held-out", time.strftime("%Y-%m-%d"), arm, of[0], 0.0, "", rounded, minutes=of[1])


def by_whole_documents(options: Options, queries: Sequence[str]) -> list[list[str]]:
    return [[hit.chunk_id for hit in hits] for hits in whole_documents(open_store(options.data / "store"), queries)]


def table(rows: Sequence[Row]) -> str:
    """Markdown: each way's measures, and its paired differences from the warm start."""
    warm = next(row for row in rows if row.arm == WARM)
    names = list(warm.measures)
    head = ["", "seed", *names, *(f"{name} over the warm start" for name in names), "minutes"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        means = [f"{np.mean(row.measures[name]):.3f}" for name in names]
        gained = [over(row, warm, name) if row is not warm else "" for name in names]
        cells = [row.arm, f"{row.seed or ''}", *means, *gained, f"{row.minutes:.0f}" if row.minutes else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_script(main, __doc__)
