"""Where a run's steps spend their time, and how near each phase is to what this machine could do at best.

    python -m bench.floors --run runs/demo/run --policy runs/demo/warm

For sampling, forward and backward the operations and bytes that no program can avoid are counted from the episodes that
the run wrote: each shared beginning once, weights read once for each token of the longest episode. The floor is the
longer of operations over the machine's measured speed of large matrix products and bytes over its measured bandwidth.
"of the floor" says which share of a phase's time that is. Steps after the first are counted, from the time one's
statistics were written to the next's, on the machine of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean

import torch

from forage.agent.episode import Episode
from forage.cli import run_script
from forage.errors import UserError
from forage.machine import compute_dtype
from forage.policy.card import read_policy_card
from forage.policy.packing import common_start
from forage.policy.shapes import ModelShape, shape_of
from forage.runs.report import episodes_of
from forage.runs.stats import NO_PHASES, StepStats, read_stats, stats_path


@dataclass(frozen=True)
class BenchOptions:
    """Whose steps."""

    run: Path = Path("runs/demo/run")
    """Run folder of grpo_train.py --engine local."""
    policy: Path = Path("runs/demo/warm")
    """Its policy, for the shape and the number type."""


@dataclass(frozen=True)
class Work:
    """What a phase has to do at least."""

    operations: float = 0.0
    """Floating-point, a multiplication and an addition counting two."""
    bytes: float = 0.0
    """Read from memory."""

    def __add__(self, other: Work) -> Work:
        return Work(self.operations + other.operations, self.bytes + other.bytes)


@dataclass(frozen=True)
class Machine:
    """What it can do at best."""

    operations: float
    """A second."""
    bandwidth: float
    """Bytes a second."""

    def floor(self, work: Work) -> float:
        """Seconds. Example: 10 operations and 6 bytes take 5 s at 2 operations and 3 bytes a second."""
        return max(work.operations / self.operations, work.bytes / self.bandwidth)


def main(bench: BenchOptions) -> None:
    steps = read_stats(bench.run)[1:]
    if not steps:
        raise UserError(f"{bench.run} has fewer than two steps; the first is not counted")
    shape, dtype = shape_of(str(bench.policy)), compute_dtype(read_policy_card(bench.policy).dtype)
    machine = measured_machine(dtype)
    played = [episodes_of(bench.run, stats.step) for stats in steps]
    seconds = mean_seconds(steps) | {"step": mean(seconds_between(bench.run, steps))}
    works = {
        "rollout": [sampling(shape, episodes, dtype.itemsize) for episodes in played],
        "logprobs": [forward(shape, taught(episodes)) for episodes in played],
        "backward": [backward(shape, taught(episodes)) for episodes in played],
    }
    threads, tokens = torch.get_num_threads(), mean(len(episode.ids) for each in played for episode in each)
    print(
        f"{len(steps)} steps, {mean(map(len, played)):.0f} episodes of {tokens:.0f} tokens; "
        f"{str(dtype).removeprefix('torch.')} on {threads} threads: {machine.operations / 1e9:,.0f} GFLOP/s, "
        f"{machine.bandwidth / 1e9:.1f} GB/s\n"
    )
    print("\n".join(table(seconds, {name: mean_work(each) for name, each in works.items()}, machine)))


def seconds_between(run: Path, steps: Sequence[StepStats]) -> list[float]:
    """How long each of these steps took, by when the statistics of the one before it were written."""
    ended = [stats_path(run, step).stat().st_mtime for step in (steps[0].step - 1, *(each.step for each in steps))]
    return [after - before for before, after in pairwise(ended)]


def mean_seconds(steps: Sequence[StepStats]) -> dict[str, float]:
    """How long each phase took on average over the steps."""
    names = dict.fromkeys(name for stats in steps for name in stats.seconds if name not in NO_PHASES)
    return {name: mean(stats.seconds.get(name, 0.0) for stats in steps) for name in names}


def table(seconds: dict[str, float], works: dict[str, Work], machine: Machine) -> list[str]:
    """Markdown: a line for each phase, the longest first."""
    whole = seconds["step"]
    shown = {name: value for name, value in seconds.items() if name != "step"}
    shown["other"] = max(0.0, whole - sum(shown.values()))
    lines = ["| phase | s | of the step | GFLOP | GB read | floor, s | of the floor |", "|---|---|---|---|---|---|---|"]
    for name, value in sorted(shown.items(), key=lambda item: -item[1]):
        cells = ["", "", "", ""]
        if name in works and value:
            work, floor = works[name], machine.floor(works[name])
            cells = [f"{work.operations / 1e9:,.0f}", f"{work.bytes / 1e9:.1f}", f"{floor:.2f}", f"{floor / value:.0%}"]
        lines.append(f"| {name} | {value:.2f} | {value / whole:.0%} | {' | '.join(cells)} |")
    return [*lines, f"| step | {whole:.2f} | 100% | | | | |"]


# What has to be done


def sampling(shape: ModelShape, episodes: Sequence[Episode], width: int) -> Work:
    """Play these episodes together, in numbers of `width` bytes.

    Tokens that were not sampled are computed once where episodes share them. Each position of the longest episode's
    samples reads all weights; each sampled token its own keys and values.
    """
    sampled = [position for episode in episodes for position, mask in enumerate(episode.mask) if mask]
    places = distinct([episode.ids for episode in episodes])
    given = [position for number, position in places if not episodes[number].mask[position]]
    steps = max((sum(episode.mask) for episode in episodes), default=0)
    read = shape.parameters * steps + 2 * shape.layers * shape.keys * sum(sampled)
    return layers(shape, [*sampled, *given]) + output(shape, len(sampled)) + Work(bytes=float(read * width))


def forward(shape: ModelShape, episodes: Sequence[Episode]) -> Work:
    """Log-probabilities of what was sampled; beginnings that a group shares count once."""
    sampled = sum(sum(episode.mask) for episode in episodes)
    return layers(shape, shared_positions(episodes)) + output(shape, sampled)


def backward(shape: ModelShape, episodes: Sequence[Episode]) -> Work:
    """Gradients with respect to activations: a product for each of the forward pass, two in attention. The base's
    weights get none, and an adapter's are too few to count."""
    positions = shared_positions(episodes)
    return forward(shape, episodes) + Work(attention(shape, positions))


def layers(shape: ModelShape, positions: Sequence[int]) -> Work:
    """All decoder layers at tokens in these positions."""
    return Work(2.0 * shape.linear_parameters * len(positions) + attention(shape, positions))


def attention(shape: ModelShape, positions: Sequence[int]) -> float:
    """Operations: queries times keys and weights times values, at each token over itself and those before it."""
    return 4.0 * shape.layers * shape.queries * sum(position + 1 for position in positions)


def output(shape: ModelShape, tokens: int) -> Work:
    """The output layer."""
    return Work(2.0 * shape.vocabulary * shape.hidden * tokens)


def shared_positions(episodes: Sequence[Episode]) -> list[int]:
    """Positions of the tokens to compute when the episodes of each question share their beginnings."""
    groups: dict[str, list[tuple[int, ...]]] = {}
    for episode in episodes:
        groups.setdefault(episode.question_id, []).append(episode.ids)
    return [position for rows in groups.values() for _, position in distinct(rows)]


def distinct(rows: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """(row, position) of each node of the rows' prefix tree. Example: 1 2 3 and 1 2 4 give (0, 0), (0, 1), (0, 2) and
    (1, 2)."""
    found, before = list[tuple[int, int]](), tuple[int, ...]()
    for number in sorted(range(len(rows)), key=lambda number: rows[number]):
        found += [(number, position) for position in range(common_start(before, rows[number]), len(rows[number]))]
        before = rows[number]
    return found


def taught(episodes: Sequence[Episode]) -> list[Episode]:
    """Episodes of groups whose rewards differ: others have no gradient."""
    rewards: dict[str, set[float]] = {}
    for episode in episodes:
        rewards.setdefault(episode.question_id, set()).add(episode.reward)
    return [episode for episode in episodes if len(rewards[episode.question_id]) > 1]


def mean_work(works: Sequence[Work]) -> Work:
    return Work(mean(work.operations for work in works), mean(work.bytes for work in works))


# What the machine can do


def measured_machine(dtype: torch.dtype) -> Machine:
    """The best of several large matrix products, and of several sums over more numbers than any cache holds."""
    square = torch.randn(2048, 2048).to(dtype)
    long = torch.zeros(2**26)
    return Machine(2 * 2048**3 / fastest(lambda: square @ square), long.nbytes / fastest(long.sum))


def fastest(action: Callable[[], object], tries: int = 7) -> float:
    times = []
    for _ in range(tries):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


if __name__ == "__main__":
    run_script(main, __doc__)
