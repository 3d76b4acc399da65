"""Claims: several workers share a step's questions through files alone, and none is played twice.

A worker claims a question by making its claim file, which the file system lets only one of them do, and keeps it fresh
while it plays. A claim that is no longer fresh is of a worker that died. Another one takes the question over by making
the claim after it, `<question>~1`, then `~2`: the last one counts. As no claim is ever removed or written again, a
worker that saw a void claim and was slow can't take away what a faster one made of it.
"""

from __future__ import annotations

import os
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Claims:
    """The claims of one step, in a folder of their own."""

    folder: Path
    worker: str
    lease: float = 120.0
    """Seconds after which a claim that was not refreshed is void."""

    def take(self, question_id: str) -> bool:
        """True if the question is this worker's now: newly claimed, or claimed by it before it was restarted."""
        self.folder.mkdir(parents=True, exist_ok=True)
        last, following = self._last(question_id)
        if last and last.read_text() == self.worker:
            os.utime(last)
            return True
        if last and time.time() - last.stat().st_mtime <= self.lease:
            return False
        # Written whole under a name of its own, then linked: who reads a claim never finds it without its owner.
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
        """Say that the question is still being played; a claim that was taken over meanwhile stays with its taker."""
        last, _ = self._last(question_id)
        if last and last.read_text() == self.worker:
            os.utime(last)

    def holds(self, question_id: str) -> bool:
        last, _ = self._last(question_id)
        return last is not None and last.read_text() == self.worker

    def _last(self, question_id: str) -> tuple[Path | None, Path]:
        """(The claim that counts, the path of the one after it.)"""
        name = urllib.parse.quote(question_id, safe="").replace("~", "%7E")  # quote leaves a ~ as it is
        last, following, number = None, self.folder / name, 0
        while following.exists():
            number += 1
            last, following = following, self.folder / f"{name}~{number}"
        return last, following
