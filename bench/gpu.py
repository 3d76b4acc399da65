"""Everything that only a GPU can show, in one command of at most nine minutes; nothing is downloaded.

    python -m bench.gpu

Random weights in the sizes of Qwen2.5-7B and SmolLM2-135M are made on the device. It needs torch, transformers and
peft; rows that want bitsandbytes, trl or liger-kernel say so where these are missing. Each row has a process of its
own, and what it measured is in the JSON file as soon as it is known. --tiny measures everything on small models, on a
CPU within a minute.

Tokens/s counts the episodes' tokens, however many are computed; MFU the operations that an update needs, without
recomputation and padding, over the peak in bench/gpu_rows/device.py; peak GiB PyTorch's tensors.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forage.files import replacing

# argparse and a plain table instead of forage.cli: a borrowed GPU machine may have neither tyro nor rich.

ROOT = Path(__file__).resolve().parent.parent
LEAST_SECONDS = 5.0  # with less time left than this, no row is begun
FIGURES, DONE = "figures: ", "done"  # what a worker prints; libraries print other lines
ONE_GPU = {"CUDA_VISIBLE_DEVICES": "0"}  # with several, TRL's trainer would split each batch over them
COLUMNS = {"tokens_per_second": "{:,.0f}", "mfu": "{:.1%}", "peak_gib": "{:.1f}"}


@dataclass(frozen=True)
class Row:
    """One line of the table: a function of a module of bench/gpu_rows, with its arguments."""

    name: str
    module: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    limit: float = 100.0
    """Most seconds it may take, so that a row that hangs leaves time for the others."""


# In the order of their worth: when time runs out, the last ones are missing.
ROWS = (
    Row("machine", "device", "describe", limit=60),
    Row("update bf16, checkpointing", "update", "measure_update", {"quantized": False, "checkpointing": True}, 200),
    Row("update NF4, checkpointing", "update", "measure_update", {"quantized": True, "checkpointing": True}, 200),
    Row("update TRL bf16, checkpointing", "trl_update", "measure_trl"),
    Row("sampling LocalEngine", "sampling", "measure_engine"),
    Row("sampling generate", "sampling", "measure_generate"),
    Row("log-probabilities", "agreement", "measure_agreement", limit=60),
    Row("processes", "processes", "measure_processes", {"sharding": "none"}, limit=60),
    Row("longest episode NF4", "longest", "measure_longest", {"quantized": True}),
    Row("update bf16", "update", "measure_update", {"quantized": False, "checkpointing": False}),
    Row("update NF4", "update", "measure_update", {"quantized": True, "checkpointing": False}),
    Row("shares bf16, checkpointing", "shares", "measure_shares", {"quantized": False}),
    Row("shares NF4, checkpointing", "shares", "measure_shares", {"quantized": True}),
    Row("longest episode bf16", "longest", "measure_longest", {"quantized": False}),
    Row("sampling LocalEngine without cuDNN", "sampling", "measure_engine", {"cudnn": False}),
    Row("processes fsdp2", "processes", "measure_processes", {"sharding": "fsdp2"}, limit=60),
    Row("update TRL and Liger bf16, checkpointing", "trl_update", "measure_trl", {"liger": True}),
)


@dataclass
class Result:
    """What became of a row."""

    row: str
    status: str
    """measured, failed, timed out, or not reached; the last three may have some figures."""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    trace: str = ""
    """With failed: the end of what the process wrote to stderr."""


@dataclass(frozen=True)
class BenchOptions:
    """What to measure."""

    tiny: bool = False
    """Small models and short episodes, for a CPU."""
    minutes: float = 9.0
    """Time for all rows."""
    json: Path = Path("runs/gpu.json")
    """File of figures."""
    only: tuple[str, ...] = ()
    """Rows whose names begin so; none: all rows."""
    worker: bool = False
    """Measure the rows that stdin names; each row's process is started so."""


def main(options: BenchOptions) -> None:
    if options.worker:
        work(tiny=options.tiny)
        return
    rows = [row for row in ROWS if not options.only or any(row.name.startswith(name) for name in options.only)]
    results: list[Result] = []
    print("| row | tokens/s | MFU | peak GiB | more |\n|---|---|---|---|---|", flush=True)
    for result in measure_all(rows, options.minutes * 60, tiny=options.tiny, reuse=options.tiny):
        results.append(result)
        print(line(result), flush=True)
        with replacing(options.json) as file:
            json.dump({"tiny": options.tiny, "rows": [asdict(each) for each in results]}, file, indent=1)
    if not any(result.status == "measured" for result in results):
        sys.exit("nothing was measured")


def parse(arguments: Sequence[str] | None = None) -> BenchOptions:
    parser = argparse.ArgumentParser(
        "python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="small models and short episodes, for a CPU")
    parser.add_argument("--minutes", type=float, default=BenchOptions.minutes, help="time for all rows (9)")
    parser.add_argument("--json", type=Path, default=BenchOptions.json, help="file of figures (runs/gpu.json)")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="rows whose names begin so")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    return BenchOptions(given.tiny, given.minutes, given.json, tuple(given.only), given.worker)


def measure_all(rows: Sequence[Row], seconds: float, *, tiny: bool, reuse: bool) -> Iterator[Result]:
    """Measure each row within the time. The next row's process loads its libraries while the row before it runs.

    With `reuse`, one process measures until a row fails in it: loading the libraries takes longer than most tiny rows.
    """
    deadline, idle = time.monotonic() + seconds, None
    try:
        for number, row in enumerate(rows):
            left = deadline - time.monotonic()
            if left < LEAST_SECONDS:
                yield Result(row.name, "not reached")
                continue
            worker, idle = idle or Worker(tiny=tiny), None
            if not reuse and number + 1 < len(rows):
                idle = Worker(tiny=tiny)
            result = worker.measure(row, min(row.limit, left))
            if reuse and result.status == "measured":
                idle = worker
            else:
                worker.stop()
            yield result
    finally:
        if idle:
            idle.stop()


class Worker:
    """A process that measures rows by name, read from its stdin, once its libraries are loaded."""

    def __init__(self, *, tiny: bool) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-m", "bench.gpu", "--worker", *(["--tiny"] if tiny else [])]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=ONE_GPU | os.environ,
        )
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for text in self.process.stdout:
            self.lines.put(text.rstrip("\n"))
        self.lines.put(None)

    def measure(self, row: Row, seconds: float) -> Result:
        started, result = time.monotonic(), Result(row.name, "timed out")
        self._begin(row)
        while (left := started + seconds - time.monotonic()) > 0:
            try:
                text = self.lines.get(timeout=left)
            except queue.Empty:
                break
            if text is None:  # the process has ended, or is about to
                result.status, (result.message, result.trace) = "failed", self._last_words()
                break
            if text == DONE:
                result.status = "measured"
                break
            if text.startswith(FIGURES):
                result.figures = json.loads(text.removeprefix(FIGURES))
        result.seconds = time.monotonic() - started
        return result

    def _begin(self, row: Row) -> None:
        assert self.process.stdin
        try:
            self.process.stdin.write(row.name + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            self.process.wait()  # it died while it loaded; its last words say why

    def _last_words(self) -> tuple[str, str]:
        """The error's own line, and what led to it."""
        status = self.process.wait()
        self.errors.seek(0)
        text = self.errors.read().strip()
        last = (text.splitlines() or [f"ended with status {status}"])[-1]
        return last.replace("[rank0]: ", "")[:300], text[-4000:]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()


def work(*, tiny: bool) -> None:
    """Measure the rows that stdin names, until it ends. An error ends the process, and with it all that it holds."""
    from bench.gpu_rows import update  # noqa: F401  # torch, transformers and peft, before the first row comes
    from bench.gpu_rows.scale import FULL, TINY

    by_name = {row.name: row for row in ROWS}
    for name in sys.stdin:
        row = by_name[name.rstrip("\n")]
        module = importlib.import_module(f"bench.gpu_rows.{row.module}")
        found = getattr(module, row.function)(TINY if tiny else FULL, **row.arguments)
        for figures in [found] if isinstance(found, dict) else found:
            print(FIGURES + json.dumps(figures), flush=True)
        print(DONE, flush=True)


def line(result: Result) -> str:
    """The row of the table.

    Example: | update NF4 | 3,100 | 31.0% | 22.5 | token_budget 8192 |.
    """
    figures = dict(result.figures)
    columns = [form.format(value) if (value := figures.pop(name, None)) else "" for name, form in COLUMNS.items()]
    more = [f"{name} {short(value)}" for name, value in flat(figures).items()]
    if result.status != "measured":
        more.append(": ".join(part for part in (result.status, result.message) if part))
    return "| " + " | ".join([result.row, *columns, ", ".join(more)]) + " |"


def flat(figures: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Example: {"a": {"mean": 1}} gives {"a mean": 1}."""
    result: dict[str, Any] = {}
    for name, value in figures.items():
        result |= flat(value, f"{prefix}{name} ") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return result


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main(parse())
