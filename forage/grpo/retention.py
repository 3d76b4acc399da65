"""Retention: which adapters of a run are kept, and that finished steps' episodes are compressed.

A 7B adapter of rank 16 takes 160 MB, so 200 steps would be 32 GB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from forage.agent.episode import compress
from forage.errors import UserError
from forage.files import remove_folder
from forage.grpo.options import TrainOptions
from forage.heartbeat import beat
from forage.policy.adapters import adapter_path, versions
from forage.runs.stats import read_evaluations

RECENT = 10  # steps whose episodes a late worker may still write
LEFT_BY_A_KILL = 2  # adapters that a run killed before it could prune may leave


def kept_versions(there: Iterable[int], options: TrainOptions, evaluated: Collection[int]) -> set[int]:
    """The versions to keep: the first, the last few, those that were evaluated, and every n-th.

    Example: of 0 to 20 with --keep-adapters 7, --keep-every 8 and version 10 evaluated: 0, 8, 10 and 14 to 20.
    """
    ordered, keep = sorted(there), options.keep
    if not keep.keep_adapters:
        return set(ordered)
    last = ordered[-keep.at_least(options.guard.rollback_steps, options.max_staleness) :]
    every = [version for version in ordered if keep.keep_every and version % keep.keep_every == 0]
    return {*ordered[:1], *last, *every, *(version for version in ordered if version in evaluated)}


def superfluous(options: TrainOptions) -> set[int]:
    """The versions of a run that are not kept."""
    there = versions(options.run_dir)
    return set(there) - kept_versions(there, options, read_evaluations(options.run_dir))


def prune_adapters(options: TrainOptions) -> None:
    """Remove the other adapters. Called once a newer checkpoint is on the disk, so that no resumed run needs them."""
    for version in superfluous(options):
        remove_folder(adapter_path(options.run_dir, version))


def check_pruning(options: TrainOptions) -> None:
    """Refuse a resumed run that would lose many adapters at once: those an earlier version or --keep-adapters kept."""
    gone = superfluous(options)
    if len(gone) > LEFT_BY_A_KILL:
        raise UserError(
            f"{options.run_dir} holds {len(gone)} adapters that --keep-adapters {options.keep.keep_adapters} would "
            "remove; give --keep-adapters 0 to keep them all, or remove those you don't need first"
        )


def compress_episodes(run_dir: Path, step: int, *, recent: int | None = None) -> None:
    """Compress the episodes of every step before this one, or of that many before it, and of finished evaluations.

    Looking into every step's folder after each step would make a run of thousands of steps wait for its file system.
    """
    evaluated, episodes = read_evaluations(run_dir), run_dir / "episodes"
    if recent is None:
        paths = sorted(episodes.glob("[0-9]*/*.jsonl"))
    else:
        names = [f"{n:06d}{kind}" for n in range(max(0, step - recent), step + 1) for kind in ("", "-eval")]
        paths = [path for name in names for path in sorted((episodes / name).glob("*.jsonl"))]
    for path in paths:
        beat()  # an earlier version left many to compress
        number, _, kind = path.parent.name.partition("-")
        if not number.isdigit():  # somebody's copy
            continue
        if int(number) in evaluated if kind == "eval" else int(number) < step:
            compress(path)


def tidy(options: TrainOptions, step: int, *, recent: int | None = None) -> None:
    """What each step ends with, and what a resumed run begins with, should it have been killed before."""
    prune_adapters(options)
    compress_episodes(options.run_dir, step, recent=recent)
