"""What every benchmark is made of: functions in processes of their own, pairs that take turns, peaks, servers, bars.

A benchmark is a module with `main(options)` that ends with `finish(bars)`, and a row of bench/table.py.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, ParamSpec, TypeVar

import httpx

from forage import CACHES
from forage.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
PEERS, VLLM = ROOT / ".venv-peers/bin/python", ROOT / ".venv-vllm"
BARS = "BENCH_BARS"  # bench/table.py names in this variable a file for what `finish` is given
PATIENCE = 600.0  # seconds for a server to start

P = ParamSpec("P")
T = TypeVar("T")


# Figures and bars


@dataclass(frozen=True)
class Bar:
    """A measured figure, one for each round, and what it must at least reach; without a bar it is stated.

    It falls short if it does in every round; what reaches its bar in some is noise, and is called that.
    """

    name: str
    figures: tuple[float, ...]
    least: float | None = None

    @property
    def reached(self) -> bool:
        return self.least is None or max(self.figures) >= self.least

    @property
    def verdict(self) -> str:
        if self.least is None:
            return "stated"
        return "ok" if median(self.figures) >= self.least else "within its range" if self.reached else "SHORT"

    def __str__(self) -> str:
        bar = "" if self.least is None else f"bar {self.least:g}, "
        return f"{self.name} {self.figure} ({bar}{self.verdict})"

    @property
    def figure(self) -> str:
        """Example: rounds of 2, 3 and 2.5 are "2.5 (2 to 3)"."""
        spread = f" ({min(self.figures):.3g} to {max(self.figures):.3g})" if len(self.figures) > 1 else ""
        return f"{median(self.figures):.3g}{spread}"


def finish(bars: Sequence[Bar]) -> None:
    """Print the bars as one line and end the process, with status 1 if one falls short."""
    print("; ".join(map(str, bars)), flush=True)
    if path := os.environ.get(BARS):
        Path(path).write_text(json.dumps([asdict(bar) for bar in bars]))
    sys.exit(0 if all(bar.reached for bar in bars) else 1)


def in_turns(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each way gives in each round; they take turns, so that what slows the machine slows all of them."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            found[name].append(measure())
    return found


def ratios(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    """Round by round."""
    return tuple(one / other for one, other in zip(above, below, strict=True))


def seconds_of(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def peak_mib() -> float:
    """The most that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# Processes


def alone(measure: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What a function gives in a process of its own, whose peak is its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure, *arguments, **named).result()
        except BrokenProcessPool:
            raise UserError(f"the process of {measure.__name__} was killed; is memory enough?") from None


def trl(what: str, **options: object) -> dict[str, Any]:
    """What bench/peers/by_trl.py measured."""
    flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", value)]
    figures: dict[str, Any] = said_by_peer("by_trl.py", what, *flags)
    return figures


def said_by_peer(script: str, *arguments: object) -> Any:
    """The JSON that a script of bench/peers ends with, in the environment that has TRL."""
    if not PEERS.exists():
        raise UserError(f"{PEERS} is missing, which has TRL; run: make bench-env")
    return json.loads(output_of("TRL", [PEERS, ROOT / "bench/peers" / script, *arguments]).splitlines()[-1])


def outer() -> dict[str, str]:
    """The environment without what forage sets in it for itself, for what has no forage."""
    return {name: value for name, value in os.environ.items() if name not in CACHES}


def output_of(name: str, command: Sequence[object]) -> str:
    """What a command prints; if it fails, the last line of what it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=outer(), check=False)
    if done.returncode:
        raise UserError(f"{name} failed: {(done.stderr.strip().splitlines() or ['it printed nothing'])[-1]}")
    return done.stdout


@contextmanager
def serving(url: str, log: Path, *flags: str, command: Sequence[str] = (), **settings: str) -> Iterator[str]:
    """The address of a vLLM server: the one at `url`, or one that runs as long as the block: what `command` starts, by
    default one of the packaged model."""
    if url:
        yield url
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = command or [str(ROOT / "scripts/vllm_cpu.sh")]
    with running([*command, *flags], log, **{"PORT": port, "VLLM_PORT": port} | settings) as server:
        wait_for(f"http://127.0.0.1:{port}", server, log)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def running(command: Sequence[str], log: Path, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the repository's root that ends with the block, and with it all that it started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=outer() | settings, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield process
    finally:
        for end in (signal.SIGTERM, signal.SIGKILL):  # a server's children may outlive it, and hold a GPU's memory
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, end)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        time.sleep(1)
    raise UserError(f"the vLLM server did not start; its last words are at the end of {log}")
