"""Steps an hour of three ways to divide a machine between playing and learning.

    python -m bench.overlap --data runs/demo/data --policy runs/demo/warm --workers 1 2 4

    turns        one process that plays, then learns, with a thread for each core
    shared       a process for each core (torchrun): all play their share of a step, then all learn theirs
    1 worker     a trainer, and a worker that plays the next step meanwhile (--max-staleness 1), a thread for each
    2 workers    the same with two workers, and so on

With --image grpo:cpu the trainer and each worker run in a container of their own, without a network: all that they
share is the run folder. The ways without workers stay as they are.

Each way runs grpo_train.py for --max-steps from the same start, one after the other, with the same questions in a step.
Time is counted from the statistics of the second step to those of the last, since processes start during the first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.asynchronous import Pace, pace_of
from bench.report import Bar, finish
from forage.cli import run_script
from forage.errors import UserError, check_at_least_one
from forage.runs.stats import read_stats
from forage.runs.waiting import Shares, shares

ALONE = ("turns", "shared")
POLL = 0.2  # seconds between two looks at the processes


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    data: Path = Path("runs/demo/data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("runs/demo/warm")
    """Policy folder to start from."""
    max_steps: int = 8
    """Steps of each way."""
    batch_size: int = 8
    """Questions of a step."""
    num_rollouts: int = 4
    """Episodes of each question."""
    workers: tuple[int, ...] = (1,)
    """Numbers of workers to try."""
    alone: bool = True
    """Run the two ways without workers, too."""
    image: str | None = None
    """Docker image in whose containers trainer and workers run, such as grpo:cpu; none: as processes."""
    rounds: int = 1
    """How often each way is run; the best counts."""

    def check(self) -> None:
        check_at_least_one(self, "rounds")
        if not self.alone and not self.workers:
            raise UserError("--no-alone and no --workers leave nothing to run")
        if min(self.workers, default=1) < 1:
            raise UserError(f"--workers {' '.join(map(str, self.workers))}: each must be at least 1")
        if self.max_steps < 3:
            raise UserError(f"--max-steps {self.max_steps}: at least 3 are needed to tell a pace")
        if cores() < 2:
            raise UserError("one core can't be divided; run this where there are at least two")
        if self.image is not None and not has_image(self.image):
            raise UserError(
                f"--image {self.image}: no Docker engine here has it; build it with `docker build -t {self.image} .`"
            )


def main(bench: BenchOptions) -> None:
    bench.check()
    ways = dict.fromkeys(ALONE if bench.alone else (), 0) | {
        f"{count} worker{'s' * (count > 1)}": count for count in bench.workers
    }
    best = dict.fromkeys(ways, 0.0)
    for _ in range(bench.rounds):
        for way, workers in ways.items():
            with TemporaryDirectory() as folder:
                run(bench, way, workers, Path(folder))
                pace = pace_of(Path(folder) / "run")
                waited = shares(read_stats(Path(folder) / "run"))
            best[way] = max(best[way], pace.per_hour)
            print(f"{way:10} {line(bench, pace, waited)}", flush=True)
    first, *others = ways
    finish([Bar(f"{way} / {first}, steps an hour", best[way] / best[first]) for way in others])


def line(bench: BenchOptions, pace: Pace, waited: Shares | None) -> str:
    """Example: 120.0 steps an hour, 1.07 episodes/s; waiting: trainer 62%, workers 0%, for each other 4%."""
    episodes = bench.batch_size * bench.num_rollouts
    said = f"{pace.per_hour:.1f} steps an hour, {pace.per_hour * episodes / 3600:.2f} episodes/s"
    if waited is None:
        return said
    return (
        f"{said}; waiting: trainer {waited.trainer:.0%}, workers {waited.workers:.0%}, for each other "
        f"{waited.tail:.0%}; {pace.behind:.0%} of the steps by an older adapter; {pace.stale} episodes dropped"
    )


def cores() -> int:
    return len(os.sched_getaffinity(0))


def run(bench: BenchOptions, way: str, workers: int, folder: Path) -> None:
    """A run to its end; with workers, to theirs."""
    places = ("--data", bench.data, "--policy", bench.policy, "--run-dir", folder / "run")
    python: tuple[object, ...] = (sys.executable,)
    if way == "shared":
        python = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", cores())
    train = (
        *python, "grpo_train.py", *places, "--batch-size", bench.batch_size, "--num-rollouts", bench.num_rollouts,
        "--max-steps", bench.max_steps, "--eval-every", 0, "--report-to", "none", "--on-collapse", "warn",
        *(("--rollouts", "service", "--max-staleness", 1) if workers else ("--engine", "local")),
    )  # fmt: skip
    play = (
        sys.executable, "grpo_rollout.py", *places, "--engine", "local", "--follow", "--max-staleness", 1,
        "--concurrency", -(-bench.batch_size // max(1, workers)), "--worker",
    )  # fmt: skip
    commands = {"trainer": train} | {f"w{number}": (*play, f"w{number}") for number in range(workers)}
    if workers and bench.image:
        commands = {name: contained(bench, folder, command) for name, command in commands.items()}
    threads = cores() if way == "turns" else 1
    processes = {name: start(folder / name, command, threads) for name, command in commands.items()}
    try:
        while any(process.poll() is None for process in processes.values()):
            check_all_well(way, folder, processes)  # a trainer whose worker failed would wait for it for ever
            time.sleep(POLL)
        check_all_well(way, folder, processes)
    finally:
        for process in processes.values():
            process.terminate()  # does nothing to one that has ended
            process.wait()


def check_all_well(way: str, folder: Path, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    for name, process in processes.items():
        if process.poll():
            said = (folder / name).read_text().splitlines()
            raise UserError(f"{way}: {name} failed: {(said or ['it printed nothing'])[-1]}")


def contained(bench: BenchOptions, folder: Path, command: Sequence[object]) -> tuple[object, ...]:
    """The command in a container that sees the checkout and the policy, and may write into the data and `folder`."""
    assert bench.image is not None
    read_only = (Path.cwd(), bench.policy)
    written = (bench.data, folder)  # the data too: Chroma writes into its folder when it opens it
    mounts = [f"{path.absolute()}:{path.absolute()}:ro" for path in read_only]
    mounts += [f"{path.absolute()}:{path.absolute()}" for path in written]
    return (
        "docker", "run", "--rm", "--network", "none", "--user", f"{os.getuid()}:{os.getgid()}", "--workdir", Path.cwd(),
        "--env", "OMP_NUM_THREADS", "--env", "HOME=/tmp", *(word for mount in mounts for word in ("--volume", mount)),
        bench.image, "python", *command[1:],
    )  # fmt: skip


def has_image(image: str) -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True).returncode == 0


def start(log: Path, command: Sequence[object], threads: int) -> subprocess.Popen[bytes]:
    with log.open("w") as file:
        return subprocess.Popen(
            list(map(str, command)), stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": str(threads)}
        )


if __name__ == "__main__":
    run_script(main, __doc__)
