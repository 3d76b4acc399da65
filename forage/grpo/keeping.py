"""Keeping: which adapters of a run stay, and that finished steps' episodes are compressed.

A 7B adapter of rank 16 takes 160 MB, so 200 steps would be 32 GB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from forage.agent.episode import compress
from forage.files import remove_folder
from forage.grpo.options import TrainOptions
from forage.policy.adapters import adapter_path, versions
from forage.runs.stats import read_evaluations

RECENT = 10  # steps whose episodes a late worker may still write


def tidy(options: TrainOptions, step: int) -> None:
    """What each step ends with, once its checkpoint is on the disk, and what a resumed run begins with."""
    there, evaluated = versions(options.run_dir), read_evaluations(options.run_dir)
    for version in set(there) - kept_versions(there, options, evaluated):
        remove_folder(adapter_path(options.run_dir, version))
    compress_episodes(options.run_dir, step, evaluated)


def kept_versions(there: Iterable[int], options: TrainOptions, evaluated: Collection[int]) -> set[int]:
    """The versions to keep: the first, those that were evaluated, and the last few, of which a rollback or a worker
    that still loads may need some.

    Example: of 0 to 20 with --keep-adapters 7 and version 10 evaluated: 0, 10 and 14 to 20.
    """
    ordered = sorted(there)
    if not options.keep_adapters:
        return set(ordered)
    last = max(options.keep_adapters, options.guard.rollback_steps + 1, options.max_staleness + 2)
    return {*ordered[:1], *ordered[-last:], *(version for version in ordered if version in evaluated)}


def compress_episodes(run_dir: Path, step: int, evaluated: Collection[int]) -> None:
    """Compress the episodes of the last few steps before this one, and of their evaluations.

    Looking into every step's folder after each step would make a run of thousands of steps wait for its file system.
    """
    for number in range(max(0, step - RECENT), step + 1):
        done = [f"{number:06d}"] * (number < step) + [f"{number:06d}-eval"] * (number in evaluated)
        for path in [path for name in done for path in (run_dir / "episodes" / name).glob("*.jsonl")]:
            compress(path)
