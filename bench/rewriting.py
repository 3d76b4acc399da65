"""What reinforcement adds to a query rewriter: PPO and GRPO from one warm start, by seed, beside the question itself.

    python -m bench.rewriting --data runs/medquad/data/rewriter --work runs/rewriter

Both algorithms get the same questions, rewrites of each, reward and updates; what judges a rewrite differs: a value
model, or the question's other rewrites. A run that was killed goes on where it stopped. What is measured is kept in
--rows, so that the table can be made without the runs. Prints Markdown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.controls import Row, over, run
from forage.arguments import parse
from forage.cli import run_script
from forage.files import json_lines, write_jsonl
from forage.rewriter.data import open_search, read_data
from forage.rewriter.evaluation import measure
from forage.rewriter.models import load_tokenizer
from forage.rewriter.options import Options as TrainOptions

RAW, WARM = "the question", "warm start"
ASKED = (
    "--instruction", "Write words for a search.", "--query-weight", "1", "--max-new-tokens", "16", "--report-to",
    "none",
)  # fmt: skip
WARMED = (*ASKED, "--warm-steps", "100", "--max-steps", "0", "--eval-questions", "50")
TRAINED = (
    *ASKED, "--backend", "own", "--reward", "gain", "--temperature", "1", "--top-p", "1", "--batch-size", "32",
    "--micro-batch-size", "16", "--num-rollouts", "4", "--ppo-epochs", "2", "--kl-coef", "0.001", "--learning-rate",
    "5e-4", "--save-every", "10", "--eval-questions", "1000",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The comparison."""

    data: Path = Path("runs/medquad/data/rewriter")
    """Folder that data_prep.py wrote for the rewriter."""
    work: Path = Path("runs/rewriter")
    """Folder for the warm start and the runs."""
    rows: Path = Path("bench/rewriting.jsonl")
    """File of what was measured."""
    algorithms: tuple[str, ...] = ("ppo", "grpo")
    """Algorithms to compare."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Seeds of each."""
    max_steps: int = 120
    """Updates of each."""


def main(options: Options) -> None:
    rows = [Row(**row) for _, row in json_lines(options.rows)] if options.rows.exists() else []
    for algorithm in options.algorithms:
        for seed in options.seeds:
            known = {(row.arm, row.seed) for row in rows}
            if (algorithm, seed) not in known:
                rows += [row for row in measured(options, algorithm, seed) if (row.arm, row.seed) not in known]
                write_jsonl(options.rows, rows)
    print(table(rows))


def measured(options: Options, algorithm: str, seed: int) -> Iterator[Row]:
    """Train, and measure the question itself, the warm start and what was trained."""
    start, folder = options.work / "start", options.work / f"{algorithm}-{seed}"
    if not start.exists():
        run("train_ppo", "--data", options.data, "--run-dir", options.work / "warm", "--output-dir", start, *WARMED)
    flags = (
        "--data", options.data, "--base-model", start, "--algorithm", algorithm, "--seed", seed, "--max-steps",
        options.max_steps, "--run-dir", folder, "--output-dir", f"{folder}-model", *TRAINED,
    )  # fmt: skip
    if not (folder / "evaluation.jsonl").exists():
        run("train_ppo", *flags)
    trained = replace(parse(TrainOptions, [str(flag) for flag in flags]), k=10)
    data = read_data(trained, load_tokenizer(str(start)))
    search = open_search(trained, data)
    minutes = sum(update["seconds"] for _, update in json_lines(folder / "metrics.jsonl")) / 60
    ways = ((RAW, 0, 0.0), (WARM, 0, 0.0), (algorithm, seed, round(minutes, 1)))
    for (arm, of, took), (_, found) in zip(ways, json_lines(folder / "evaluation.jsonl"), strict=True):
        five, ten = (measure(arm, data.held_out, found["searched"], search, k) for k in (5, 10))
        measures = {"recall@5": five.recall, "nDCG@10": ten.ndcg, "MRR@10": ten.mrr}
        rounded = {name: np.round(values, 3).tolist() for name, values in measures.items()}
        yield Row("held-out", time.strftime("%Y-%m-%d"), arm, of, 0.0, "", rounded, minutes=took)


def table(rows: Sequence[Row]) -> str:
    """Markdown: each way's measures, and its paired differences from the warm start."""
    warm = next(row for row in rows if row.arm == WARM)
    names = list(warm.measures)
    head = ["", "seed", *names, *(f"{name} over the warm start" for name in names), "minutes"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        means = [f"{np.mean(row.measures[name]):.3f}" for name in names]
        gained = [over(row, warm, name) if row is not warm else "" for name in names]
        cells = [row.arm, f"{row.seed or ''}", *means, *gained, f"{row.minutes:.0f}" if row.seed else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_script(main, __doc__)
