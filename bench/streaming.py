"""Memory of data preparation: by how much each stage's peak grows with the rows, and rows per second.

    python -m bench.streaming
    python -m bench.streaming --rows 10000 1000000

Rows are made up: a question, an answer of 120 words, and in one row of four the address that three others share. Their
pages are not fetched, and the store has no embedder. Each size is prepared by a process of its own, by data_prep.py's
own calls; a stage's memory is its peak over what was resident when it began.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from bench.processes import output_of
from bench.report import Bar, finish
from forage.cli import run_script
from forage.errors import UserError
from forage.files import write_jsonl

VOCABULARY, ANSWER_WORDS, MIB = 20_000, 120, 2**20
STAGES = ("documents", "store", "questions")


@dataclass(frozen=True)
class BenchOptions:
    """What to prepare."""

    rows: tuple[int, int] = (10_000, 100_000)
    """Two sizes of the data set."""
    folder: Path | None = None
    """Where data sets and data folders go (a temporary folder)."""
    point: int = 0
    """Prepare this many rows alone in this process, and print its figures as JSON."""

    def check(self) -> None:
        if not 1 <= self.rows[0] < self.rows[1]:
            raise UserError(f"--rows {self.rows[0]} {self.rows[1]}: give a small and a large size")
        if self.folder is not None and not self.folder.is_dir():
            raise UserError(f"--folder {self.folder} is no folder; make it, or leave the option out")


Figures = dict[str, float]


def main(bench: BenchOptions) -> None:
    bench.check()
    if bench.point:
        assert bench.folder
        print(json.dumps(prepared(bench.folder, bench.point)))
        return
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        small, large = (measured(Path(folder), size) for size in bench.rows)
    print("\n".join(table(bench.rows, small, large)), flush=True)
    slopes = {stage: slope(bench.rows, small, large, f"{stage}, MiB") for stage in STAGES}
    text = 1_000 * large["data set, MiB"] / bench.rows[1]
    finish(
        [
            Bar("text / memory, rows to documents", text / slopes["documents"], 2.5),
            Bar("text / memory, labels to questions", text / slopes["questions"], 1.5),
            Bar("text / memory, store", text / slopes["store"]),
        ]
    )


def measured(folder: Path, size: int) -> Figures:
    """A size's figures, by a process of its own."""
    out = folder / str(size)
    out.mkdir()
    command = [sys.executable, "-m", "bench.streaming", "--point", size, "--folder", out]
    figures: Figures = json.loads(output_of(f"{size} rows", command).splitlines()[-1])
    return figures


def table(sizes: Sequence[int], small: Figures, large: Figures) -> list[str]:
    """Markdown: a line for each stage."""
    lines = [
        f"| stage | rows/s at {sizes[1]:,} | peak at {sizes[0]:,}, MiB | at {sizes[1]:,} | MiB per 1,000 rows |",
        "|---|---|---|---|---|",
    ]
    for stage in STAGES:
        name = f"{stage}, MiB"
        rate, grows = sizes[1] / large[f"{stage}, s"], slope(sizes, small, large, name)
        lines.append(f"| {stage} | {rate:,.0f} | {small[name]:,.1f} | {large[name]:,.1f} | {grows:.3f} |")
    name = "data set, MiB"
    grows = slope(sizes, small, large, name)
    return [*lines, f"| the data set itself | | {small[name]:,.1f} | {large[name]:,.1f} | {grows:.3f} |"]


def slope(sizes: Sequence[int], small: Mapping[str, float], large: Mapping[str, float], name: str) -> float:
    """By how much a figure grows with 1,000 rows. Example: 3 at 1,000 rows and 5 at 2,000 give 2."""
    return max(1_000 * (large[name] - small[name]) / (sizes[1] - sizes[0]), 1e-6)


# A size


def prepared(folder: Path, size: int) -> Figures:
    """Seconds and peak memory of each stage."""
    import data_prep
    from forage.data.corpus import load_corpus, manifest_rows
    from forage.data.options import DatasetOptions
    from forage.data.relevance import make_questions
    from forage.store.opening import build_store
    from forage.store.options import StoreOptions

    source, out = folder / "rows.jsonl", folder / "data"
    write_jsonl(source, made_up(size))
    options = data_prep.Options(output_dir=out, dataset=DatasetOptions(str(source), scrape=False))
    options = replace(options, store=StoreOptions("none"))
    made: dict[str, Any] = {}

    def documents() -> None:
        made["corpus"] = corpus = load_corpus(options.dataset, near=out)
        write_jsonl(out / "documents.jsonl", corpus.library.documents)
        write_jsonl(out / "manifest.jsonl", manifest_rows(corpus))

    def store() -> None:
        made["store"] = build_store(out / "store", made["corpus"].library.documents, options.store)

    def questions() -> None:
        corpus, chunks = made["corpus"], made["store"].chunks
        found, _ = make_questions(corpus.rows, corpus.library.doc_of_row, chunks, near=out)
        data_prep.write_questions(found, made["store"], options)

    figures = {"data set, MiB": source.stat().st_size / MIB}
    for stage, action in zip(STAGES, (documents, store, questions), strict=True):
        figures[f"{stage}, s"], figures[f"{stage}, MiB"] = timed(action)
    return figures


def timed(action: Callable[[], None]) -> tuple[float, float]:
    """Seconds, and MiB more at the peak than before."""
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    started = time.perf_counter()
    action()
    return time.perf_counter() - started, (status("VmHWM") - before) / 1024


def status(name: str) -> int:
    """A figure of /proc/self/status, in KiB."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if name in line)


def made_up(count: int) -> Iterator[dict[str, str]]:
    draw = random.Random(0)
    words = [f"w{number:05}" for number in range(VOCABULARY)]
    shares = list(accumulate(1 / (1 + rank) for rank in range(VOCABULARY)))  # as frequent as in text
    for number in range(count):
        answer = draw.choices(words, cum_weights=shares, k=ANSWER_WORDS)
        url = f"http://x.example/{number // 16}" if number % 4 == 0 else ""
        question = f"What is known of {' '.join(answer[:4])} in {number}?"
        yield {"id": f"q{number}", "question": question, "answer": f"{' '.join(answer)}.", "url": url}


if __name__ == "__main__":
    run_script(main, __doc__)
