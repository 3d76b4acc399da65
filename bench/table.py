"""`make bench`: all benchmarks with bars, one after the other, as one table.

    make bench                                         after `make bench-env`, `make demo`, `make .venv-vllm/.installed`
    make bench ROW=update

Each row is a module of bench/ that also runs alone; one that fails, perhaps because something it needs is missing,
counts as short. Ends with status 1 if a bar is missed in every round. Run nothing else meanwhile: times are wall-clock,
so a busy machine is refused.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from bench.harness import BARS, Bar, serving
from forage.arguments import run_script
from forage.errors import UserError
from forage.machine import has_bf16, output
from forage.runs.run_folder import environment

MEDQUAD = Path("medquad.jsonl.gz")
QUIET = 0.1  # share of the cores that other processes may take


@dataclass(frozen=True)
class Row:
    """A benchmark with its options."""

    name: str
    flags: str = ""
    served: bool = False
    """Whether it asks the vLLM server, which such rows share; they come last."""

    @property
    def command(self) -> str:
        return f"python -m bench.{self.name} {self.flags}".strip()


# TRL is measured at an episode a micro-batch alone: with four it is slower, and takes over three times the memory.
ROWS = (
    Row("update", '--questions 4 --ways "shared 2048" "shared 512" --trl 1 --rounds 2'),
    Row("update", '--prompt-tokens 600 --ways "shared 4096" "plain 2048" --rounds 2'),
    Row("step", "--batches 1"),
    Row("retrieval", f"--data {MEDQUAD}"),
    Row("local_engine", "--questions 4 --rounds 2", served=True),
    Row("rollout", "--episodes 16 --rounds 2", served=True),
)


@dataclass(frozen=True)
class Options:
    """The table."""

    only: tuple[str, ...] = ()
    """Benchmarks to run, such as `update`; left out: all."""
    medquad: Path = MEDQUAD
    """MedQuAD as a file, for retrieval."""

    def check(self) -> None:
        names = {row.name for row in ROWS}
        if unknown := [name for name in self.only if name not in names]:
            raise UserError(f"--only {unknown[0]}: choose among {', '.join(sorted(names))}")


@dataclass(frozen=True)
class Result:
    """What a row gave: its bars, or why it has none."""

    row: Row
    bars: tuple[Bar, ...] = ()
    seconds: float = 0.0
    why: str = ""

    @property
    def reached(self) -> bool:
        return bool(self.bars) and all(bar.reached for bar in self.bars)


def main(options: Options) -> None:
    options.check()
    if (taken := share_taken()) > QUIET:
        raise UserError(f"other processes take {taken:.0%} of the cores, and would slow what is timed; end them first")
    rows = [row for row in ROWS if not options.only or row.name in options.only]
    results, url = list[Result](), ""
    with ExitStack() as server:
        for row in rows:
            flags = [str(options.medquad) if flag == str(MEDQUAD) else flag for flag in shlex.split(row.flags)]
            if row.served:
                url = url or server.enter_context(serving("", Path("runs/vllm.log")))
                flags += ["--url", url]
            results.append(measured(row, [sys.executable, "-m", f"bench.{row.name}", *flags]))
            print("\n".join(lines_of(results[-1])), flush=True)
    print(f"\n{machine()}\n\n{table(results)}")
    sys.exit(0 if all(result.reached for result in results) else 1)


def measured(row: Row, command: Sequence[str]) -> Result:
    """Run a row's command; its words go to stderr as they come."""
    started = time.perf_counter()
    print("$", row.command, file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bars.json"
        status = subprocess.run(command, stdout=2, env=os.environ | {BARS: str(path)}, check=False).returncode
        given = json.loads(path.read_text()) if path.exists() else []
    bars = tuple(Bar(bar["name"], tuple(bar["figures"]), bar["least"]) for bar in given)
    why = "" if bars else f"failed with status {status}, as it says above"
    return Result(row, bars, time.perf_counter() - started, why)


def share_taken(source: Path = Path("/proc/stat"), seconds: float = 3.0) -> float:
    """The share of the cores' time that others take while this process waits; 0 where the system doesn't say."""
    if not source.exists():
        return 0.0
    before = source.read_text().split()
    time.sleep(seconds)
    pairs = list(zip(before, source.read_text().split(), strict=False))[1:9]  # user, nice, system, idle, waiting, ...
    spent = [int(now) - int(then) for then, now in pairs]
    return 1 - (spent[3] + spent[4]) / sum(spent)


# The page


def table(results: Sequence[Result]) -> str:
    """Markdown: a line for each bar."""
    head = ["| benchmark | figure | measured | bar | |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(line for result in results for line in lines_of(result))])


def lines_of(result: Result) -> list[str]:
    command = f"`{result.row.command}`"
    if result.why:
        return [f"| {command} | {result.why} | | | SHORT |"]
    return [
        f"| {'' if number else f'{command} ({result.seconds:.0f} s)'} | {bar.name} | {bar.figure} | "
        f"{'' if bar.least is None else format(bar.least, 'g')} | {bar.verdict} |"
        for number, bar in enumerate(result.bars)
    ]


def machine() -> str:
    """Date, commit, processor and cores."""
    here, commit = environment(), output("git", "rev-parse", "--short", "HEAD")
    processor = f"{here['processor']}, {'with' if has_bf16('cpu') else 'without'} bf16 units"
    return f"{date.today()}, commit {commit}, {len(os.sched_getaffinity(0))} cores ({processor}):"


if __name__ == "__main__":
    run_script(main, __doc__)
