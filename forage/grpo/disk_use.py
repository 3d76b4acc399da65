"""DiskUse: what a run will write, said before it starts, and refused where the disk can't hold it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from forage.errors import UserError
from forage.grpo.options import TrainOptions
from forage.grpo.retention import kept_versions
from forage.policy.adapters import versions

TOKEN_BYTES = 8
"""What a token takes in a compressed episode. Where a third of the tokens were sampled, 6.3 were measured."""


@dataclass(frozen=True)
class DiskUse:
    """Bytes that a run has still to write."""

    adapters: int
    """How many more there will be."""
    adapter: int
    """Bytes of each."""
    episodes: int
    """Bytes at most, if every episode is as long as it may be."""

    @property
    def checkpoint(self) -> int:
        """The trained weights and AdamW's two moments of each."""
        return 3 * self.adapter

    @property
    def certain(self) -> int:
        """What is written however long the episodes are. While a checkpoint is saved, the one before it is kept."""
        return self.adapters * self.adapter + 2 * self.checkpoint


def disk_use(options: TrainOptions, start: Path, step: int, max_tokens: int) -> DiskUse:
    """`start` is the adapter that training began with, which later ones are as large as."""
    steps, every = range(options.max_steps + 1), options.eval_every
    evaluated = {n for n in steps if every and (n % every == 0 or n == options.max_steps)}
    there, kept = set(versions(options.run_dir)), kept_versions(steps, options, evaluated)
    new = max(0, len(kept - there) - len(there - kept))  # those that go on the way make room
    rollout = options.rollout
    episodes = (options.max_steps - step) * rollout.batch_size * rollout.num_rollouts
    episodes += sum(n >= step for n in evaluated) * options.eval_questions
    size = sum(path.stat().st_size for path in start.iterdir() if path.is_file())
    return DiskUse(new, size, episodes * max_tokens * TOKEN_BYTES)


def check_room(needs: DiskUse, run_dir: Path) -> None:
    """Print what will be written; refuse if the disk obviously lacks the room."""
    free = shutil.disk_usage(run_dir).free
    print(
        f"{run_dir} will hold {needs.adapters} more adapters of {mib(needs.adapter)}, a checkpoint of "
        f"{mib(needs.checkpoint)} and at most {mib(needs.episodes)} of episodes; {mib(free)} are free"
    )
    if needs.certain > free:
        raise UserError(
            f"{run_dir} has {mib(free)} free, but adapters and checkpoints need {mib(needs.certain)}; free some, or "
            "keep less with --keep-adapters"
        )


def mib(size: int) -> str:
    """Example: 1572864 bytes are "1.5 MiB"."""
    return f"{size / 2**20:,.1f} MiB"
