"""`make bench`: every benchmark that has bars, one after the other, as one table of ratios against bars.

    make bench                                         after `make bench-env`, `make demo`, `make .venv-vllm/.installed`
    python -m bench.table --only update --write docs/benchmarks.md

Each row is a script of bench/ that also runs alone; a benchmark that needs a vLLM server gets one. What a row needs and
isn't there is said in its place, and counts as short. Ends with status 1 if a bar is not reached. Nothing else should
compute meanwhile: times are of the wall clock.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import httpx

from bench.report import Bar
from forage.cli import run_script
from forage.errors import UserError
from forage.files import replacing
from forage.machine import has_bf16

EPISODES = "runs/demo/run/episodes/000000/trainer.jsonl"
DEMO, PEERS, SERVER, MEDQUAD = "make demo", "make bench-env", "make .venv-vllm/.installed", "--medquad FILE"
# What a row may need: where it is, and how to get it.
PLACES = {DEMO: "runs/demo/run/finished", PEERS: ".venv-peers/.installed", SERVER: ".venv-vllm/.installed"}
SERVER_URL, PATIENCE = "http://127.0.0.1:8100", 600.0
BAR = re.compile(r"(?P<name>.+?) (?P<figure>\S+) (?:\(bar (?P<least>\S+)\) (?:ok|SHORT)|\(stated\))")
BEGINS, ENDS = "<!-- make bench begins -->", "<!-- make bench ends -->"


@dataclass(frozen=True)
class Row:
    """A benchmark with its options, and what it needs."""

    command: str
    needs: tuple[str, ...] = (DEMO,)

    @property
    def name(self) -> str:
        """Example: bench.update for "bench.update --questions 4"."""
        return self.command.split()[0].removeprefix("bench.")


ROWS = (
    Row(f"bench.peer_update --policy runs/demo/warm --episodes {EPISODES}", (DEMO, PEERS)),
    Row(f"bench.update --policy runs/demo/warm --episodes {EPISODES} --prompt-tokens 600"),
    Row("bench.peer_step --data runs/demo/data --policy runs/demo/warm", (DEMO, PEERS)),
    Row(
        "bench.local_engine --data runs/demo/data --policy runs/demo/policy --url http://127.0.0.1:8100", (DEMO, SERVER)
    ),
    Row("bench.adapter_swap --policy runs/demo/policy --engine local"),
    Row("bench.adapter_swap --policy runs/demo/policy", (DEMO, SERVER)),
    Row("bench.rollout --data runs/demo/data", (DEMO, SERVER)),
    Row("bench.retrieval --data {medquad}", (PEERS, MEDQUAD)),
    Row("bench.memory", ()),
    Row("bench.logprobs", ()),
)


@dataclass(frozen=True)
class Options:
    """The table."""

    only: tuple[str, ...] = ()
    """Benchmarks to run, such as `update`; left out: all."""
    medquad: Path | None = None
    """MedQuAD as a file, for retrieval."""
    write: Path | None = None
    """Page to put the table into, between its markers."""

    def check(self) -> None:
        names = {row.name for row in ROWS}
        if unknown := [name for name in self.only if name not in names]:
            raise UserError(f"--only {unknown[0]}: choose among {', '.join(sorted(names))}")
        if self.medquad and not self.medquad.is_file():
            raise UserError(f"--medquad {self.medquad}: no such file")
        if self.write and not between(self.write.read_text() if self.write.is_file() else ""):
            raise UserError(f"--write {self.write} has no lines {BEGINS} and {ENDS}; add them")


@dataclass(frozen=True)
class Result:
    """What a row gave: its bars, or why it has none."""

    row: Row
    bars: tuple[Bar, ...]
    seconds: float
    why: str = ""

    @property
    def reached(self) -> bool:
        return bool(self.bars) and all(bar.reached for bar in self.bars)


def main(options: Options) -> None:
    options.check()
    rows = [row for row in ROWS if not options.only or row.name in options.only]
    results = []
    for row in rows:
        results.append(result_of(row, options))
        print("\n".join(lines_of(results[-1])), flush=True)
    page = f"{machine()}\n\n{table(results)}"
    if options.write:
        text = options.write.read_text()
        with replacing(options.write) as file:
            file.write(text.replace(between(text), f"{BEGINS}\n\n{page}\n\n{ENDS}"))
    print(f"\n{page}")
    sys.exit(0 if all(result.reached for result in results) else 1)


def result_of(row: Row, options: Options) -> Result:
    """Run a row, with a server if it needs one."""
    there = {name: Path(place).exists() for name, place in PLACES.items()} | {MEDQUAD: options.medquad is not None}
    if missing := [name for name in row.needs if not there[name]]:
        return Result(row, (), 0.0, f"left out: needs {missing[0]}")
    command = [sys.executable, "-m", *row.command.format(medquad=options.medquad).split()]
    if SERVER not in row.needs:
        return measured(row, command)
    with serving() as failed:
        return Result(row, (), 0.0, failed) if failed else measured(row, command)


def measured(row: Row, command: Sequence[str]) -> Result:
    """The bars of a benchmark's last line; its other words go to stderr as they come."""
    started = time.perf_counter()
    print("$", "python", *command[1:], file=sys.stderr, flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            sys.stderr.write(line)
            last = line.strip() or last
    bars = read_bars(last)
    why = "" if bars else f"failed with status {process.returncode}, as it says above"
    return Result(row, bars, time.perf_counter() - started, why)


def read_bars(line: str) -> tuple[Bar, ...]:
    """Example: "loop / raw tokens/s 0.97 (bar 0.95) ok" gives one bar."""
    found = [BAR.fullmatch(part.strip()) for part in line.split(";")]
    if not all(found):
        return ()
    return tuple(Bar(m["name"], float(m["figure"]), float(m["least"]) if m["least"] else None) for m in found if m)


@contextmanager
def serving() -> Iterator[str]:
    """A vLLM server while the block runs; yields why there is none, if so."""
    with Path("runs/demo/vllm.log").open("w") as log:
        server = subprocess.Popen(["scripts/vllm_cpu.sh"], stdout=log, stderr=log, start_new_session=True)
    try:
        yield "" if answers(server) else "failed: the vLLM server did not start; see runs/demo/vllm.log"
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


def answers(server: subprocess.Popen[bytes]) -> bool:
    """Wait until the server answers, or has ended."""
    deadline = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{SERVER_URL}/health", timeout=5).status_code == 200:
                return True
        except httpx.TransportError:
            time.sleep(1)
    return False


# The page


def table(results: Sequence[Result]) -> str:
    """Markdown: a line for each bar."""
    head = ["| benchmark | figure | measured | bar | |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(line for result in results for line in lines_of(result))])


def lines_of(result: Result) -> list[str]:
    command = f"`python -m {result.row.command.format(medquad='medquad.jsonl.gz')}`"
    took = f"{command} ({result.seconds:.0f} s)"
    if result.why:
        return [f"| {command} | {result.why} | | | **short** |"]
    return [
        f"| {took if number == 0 else ''} | {bar.name} | {bar.figure:.3g} | "
        + ("| stated |" if bar.least is None else f"{bar.least:g} | {'ok' if bar.reached else '**short**'} |")
        for number, bar in enumerate(result.bars)
    ]


def machine() -> str:
    """Date, processor and cores."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", info.read_text(), re.MULTILINE) if info.exists() else []
    units = "with" if has_bf16("cpu") else "without"
    return f"{date.today()}, {len(os.sched_getaffinity(0))} cores ({names[0] if names else 'CPU'}, {units} bf16 units):"


def between(text: str) -> str:
    """The part of a page that the table replaces, markers included; empty if it has none."""
    begin, end = text.find(BEGINS), text.find(ENDS)
    return text[begin : end + len(ENDS)] if 0 <= begin < end else ""


if __name__ == "__main__":
    run_script(main, __doc__)
