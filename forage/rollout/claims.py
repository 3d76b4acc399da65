"""Claims: several workers share a step's questions through files alone, and no question is played twice.

A worker claims a question by creating its claim file, which the file system lets only one of them do, and refreshes it
while it plays. A claim that is no longer refreshed belongs to a worker that died. Another worker takes the question
over by creating the next claim, `<question>~1`, then `~2`: the last one counts. Claims are never removed or rewritten,
so that a slow worker that saw an expired claim can't undo a faster one's takeover.

No two clocks are ever compared: machines disagree about the time, and a clock may be set while a run goes on. A refresh
counts the file's time up by a second, and whoever waits for a claim to expire measures, by a stopwatch of its own, for
how long that time has stayed the same.
"""

from __future__ import annotations

import os
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

LEASE = 120.0  # seconds


@dataclass(frozen=True)
class Claims:
    """The claims of one step, in their own folder."""

    folder: Path
    worker: str
    lease: float = LEASE
    """Seconds after which a claim expires unless it is refreshed, from when this worker first saw it."""
    clock: Callable[[], float] = time.monotonic
    watched: dict[Path, tuple[int, float]] = field(default_factory=dict)
    """Others' claims: the file's time, and since when on this worker's clock it has been that."""

    def take(self, question_id: str) -> bool:
        """Claim a question. True if this worker holds it now, or already held it before a restart."""
        self.folder.mkdir(parents=True, exist_ok=True)
        last, following = self._last(question_id)
        if last and last.read_text() == self.worker:
            count_up(last)
            return True
        if last and not self._expired(last):
            return False
        # Written under another name, then linked, so that a claim is never seen without its owner.
        own = following.with_name(f".claim.{self.worker}.{following.name}")
        own.write_text(self.worker)
        try:
            os.link(own, following)
        except FileExistsError:
            return False
        finally:
            own.unlink()
        return True

    def refresh(self, question_id: str) -> None:
        """Show that the question is still being played. A claim that another worker took over is left alone."""
        last, _ = self._last(question_id)
        if last and last.read_text() == self.worker:
            count_up(last)

    def holds(self, question_id: str) -> bool:
        """Whether the question is still this worker's."""
        last, _ = self._last(question_id)
        return last is not None and last.read_text() == self.worker

    def _expired(self, claim: Path) -> bool:
        """Whether its owner has not refreshed it for the length of a lease."""
        now, time_ns = self.clock(), claim.stat().st_mtime_ns
        if self.watched.get(claim, (-1,))[0] != time_ns:
            self.watched[claim] = time_ns, now
        return now - self.watched[claim][1] > self.lease

    def _last(self, question_id: str) -> tuple[Path | None, Path]:
        """(the claim that counts if there is one, the path of the next one)"""
        name = urllib.parse.quote(question_id, safe="").replace("~", "%7E")  # quote leaves a ~ as it is
        last, following, number = None, self.folder / name, 0
        while following.exists():
            number += 1
            last, following = following, self.folder / f"{name}~{number}"
        return last, following


def count_up(claim: Path) -> None:
    """Set the file's time a second later than it was: a counter that no clock can turn back."""
    next_ns = claim.stat().st_mtime_ns + 1_000_000_000
    os.utime(claim, ns=(next_ns, next_ns))
