"""Claims: several workers share a step's questions through files alone, and none is played twice.

A worker claims a question by making its claim file, which the file system lets only one of them do, and keeps it fresh
while it plays. A claim that is no longer fresh is of a worker that died: whoever renames it away first may claim anew.
"""

from __future__ import annotations

import contextlib
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
        path = self._path(question_id)
        if self._owner(path) == self.worker:
            self.refresh(question_id)
            return True
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > self.lease:
                path.rename(path.with_name(f".void.{self.worker}.{path.name}"))
        # Written whole under a name of its own, then linked: who reads a claim never finds it without its owner.
        own = path.with_name(f".claim.{self.worker}.{path.name}")
        own.write_text(self.worker)
        try:
            os.link(own, path)
        except FileExistsError:
            return False
        finally:
            own.unlink()
        return True

    def refresh(self, question_id: str) -> None:
        """Say that the question is still being played; a claim that was taken over meanwhile stays with its taker."""
        path = self._path(question_id)
        if self._owner(path) == self.worker:
            with contextlib.suppress(FileNotFoundError):
                os.utime(path)

    def holds(self, question_id: str) -> bool:
        return self._owner(self._path(question_id)) == self.worker

    def _path(self, question_id: str) -> Path:
        return self.folder / urllib.parse.quote(question_id, safe="")

    @staticmethod
    def _owner(path: Path) -> str:
        try:
            return path.read_text()
        except FileNotFoundError:
            return ""
