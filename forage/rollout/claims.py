"""Claims: several workers share a step's questions through files alone, and no question is played twice.

A worker claims a question by creating its claim file, which the file system lets only one of them do, and refreshes it
while it plays. A claim that is no longer fresh belongs to a worker that died. Another worker takes the question over by
creating the next claim, `<question>~1`, then `~2`: the last one counts. Claims are never removed or rewritten, so that
a slow worker that saw an expired claim can't undo a faster one's takeover.
"""

from __future__ import annotations

import os
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Claims:
    """The claims of one step, in their own folder."""

    folder: Path
    worker: str
    lease: float = 120.0
    """Seconds after which a claim expires unless it is refreshed."""

    def take(self, question_id: str) -> bool:
        """Claim a question. True if this worker holds it now, or already held it before a restart."""
        self.folder.mkdir(parents=True, exist_ok=True)
        last, following = self._last(question_id)
        if last and last.read_text() == self.worker:
            os.utime(last)
            return True
        if last and time.time() - last.stat().st_mtime <= self.lease:
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
            os.utime(last)

    def holds(self, question_id: str) -> bool:
        """Whether the question is still this worker's."""
        last, _ = self._last(question_id)
        return last is not None and last.read_text() == self.worker

    def _last(self, question_id: str) -> tuple[Path | None, Path]:
        """(the claim that counts if there is one, the path of the next one)"""
        name = urllib.parse.quote(question_id, safe="").replace("~", "%7E")  # quote leaves a ~ as it is
        last, following, number = None, self.folder / name, 0
        while following.exists():
            number += 1
            last, following = following, self.folder / f"{name}~{number}"
        return last, following
