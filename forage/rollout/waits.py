"""Waits: how long each worker has been idle, and why, as a file per worker in the run folder that the trainer reads.

A worker's figures only grow while it lives. The trainer subtracts what it read a step before, so no clock is compared
with another one's, and nothing counts that was waited while there was no trainer.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, get_args

from forage.files import naming

Kind = Literal["backpressure", "tail"]
"""backpressure: as far ahead of the trainer as staleness allows. tail: others play all that is left of a step."""
KINDS: tuple[Kind, ...] = get_args(Kind)
SAVE_EVERY = 5.0  # seconds between two writes during one wait


class Waits:
    """The seconds that a worker has waited since its start, by kind; without a path they are only counted."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.clock = path, clock
        self.seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self._saved, self._saved_at = dict(self.seconds), clock()

    async def sleep(self, kind: Kind, seconds: float) -> None:
        began = self.clock()
        await asyncio.sleep(seconds)
        self.seconds[kind] += self.clock() - began
        if self.clock() - self._saved_at >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the file if something has changed. It is not synced: no result depends on it."""
        if self.path and self.seconds != self._saved:
            partial = self.path.with_name(f".{self.path.name}.part")
            with naming(self.path):
                partial.write_text(json.dumps(self.seconds))
                partial.replace(self.path)
        self._saved, self._saved_at = dict(self.seconds), self.clock()

    def words(self) -> str:
        """Example: 12 s for the trainer, 3 s for other workers; empty before any wait."""
        for_whom = {"backpressure": "the trainer", "tail": "other workers"}
        return ", ".join(f"{self.seconds[kind]:.0f} s for {for_whom[kind]}" for kind in KINDS if self.seconds[kind])


def waits_path(run_dir: Path, worker: str) -> Path:
    return run_dir / "workers" / f"{worker}.json"


def read_waits(run_dir: Path) -> dict[str, dict[str, float]]:
    """Each worker's seconds by kind. A file that a power cut damaged counts as none: the worker writes it again."""
    found = {}
    for path in sorted((run_dir / "workers").glob("[!.]*.json")):
        try:
            row = json.loads(path.read_bytes())
            seconds: dict[str, float] = {kind: float(row[kind]) for kind in KINDS}
        except (ValueError, KeyError, TypeError):
            continue
        if all(math.isfinite(value) and value >= 0 for value in seconds.values()):
            found[path.stem] = seconds
    return found


def waited_since(
    before: Mapping[str, Mapping[str, float]], now: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """What was waited in between, by those who waited at all. A worker that was started again counts from 0 again.

    Example: a had waited 10 s and now 14, b 10 and now 3 after a restart, c 5 and still 5: a 4, b 3.
    """
    found = {}
    for worker, seconds in now.items():
        known = before.get(worker, {})
        restarted = any(value < known.get(kind, 0.0) for kind, value in seconds.items())
        more = {kind: value - (0.0 if restarted else known.get(kind, 0.0)) for kind, value in seconds.items()}
        if any(more.values()):
            found[worker] = more
    return found
