"""Claims: several workers share a step's questions through files alone, and no question is played twice.

A worker claims a question by creating its claim file, which the file system lets only one of them do, and refreshes it
while it plays. A claim that is no longer refreshed belongs to a worker that died. Another worker takes the question
over by creating the next claim, `<question>~1`, then `~2`: the last one counts. Claims are never removed or rewritten,
so that a slow worker that saw an expired claim can't undo a faster one's takeover.

No two clocks are ever compared: machines disagree about the time, and a clock may be set while a run goes on. A refresh
counts the file's time up by a second, and whoever waits for a claim to expire measures, by a stopwatch of its own, for
how long that time has stayed the same. What one machine does may be seen on another later: a claim counts from when it
is seen, and the file system itself says whether a new one is the first, not what can be seen of the folder.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from forage.errors import UserError
from forage.files import GONE, create_once, locked, make_folder
from forage.manifest import digest

LEASE = 120.0  # seconds; NFS shows a refresh after at most 60 (acregmax), and there is one every 30
LONGEST_NAME = 240  # of the 255 bytes that file systems take; a claim's number and a temporary file's name add to it
LOOKS = 8  # at another's claim, in the time of a lease


@dataclass(frozen=True)
class Claims:
    """The claims of one step, in their own folder."""

    folder: Path
    worker: str
    lease: float = LEASE
    """Seconds after which a claim expires unless it is refreshed, from when this worker first saw it."""
    clock: Callable[[], float] = time.monotonic
    create: Callable[[Path, str], bool] = create_once
    """Creates a file unless any machine has."""
    watched: dict[Path, tuple[int, float]] = field(default_factory=dict)
    """Others' claims: the file's time, and since when on this worker's clock it has been that."""
    next_look: dict[str, float] = field(default_factory=dict)
    """When to look again at a question that another worker holds: there may be thousands."""

    def take(self, question_id: str) -> bool:
        """Claim a question. True if this worker holds it now, or already held it before a restart."""
        now = self.clock()
        if now < self.next_look.get(question_id, now):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        last, following = self._last(question_id)
        if last and owner(last) == self.worker:
            count_up(last)
            return True
        if (last and not self._expired(last)) or not self.create(following, self.worker):
            self.next_look[question_id] = now + self.lease / LOOKS
            return False
        return True

    def refresh(self, question_id: str) -> None:
        """Show that the question is still being played. A claim that another worker took over is left alone."""
        last, _ = self._last(question_id)
        if last and owner(last) == self.worker:
            count_up(last)

    def holds(self, question_id: str) -> bool:
        """Whether the question is still this worker's."""
        last, _ = self._last(question_id)
        return last is not None and owner(last) == self.worker

    def _expired(self, claim: Path) -> bool:
        """Whether its owner has not refreshed it for the length of a lease."""
        now, time_ns = self.clock(), claim.stat().st_mtime_ns
        if self.watched.get(claim, (-1,))[0] != time_ns:
            self.watched[claim] = time_ns, now
        return now - self.watched[claim][1] > self.lease

    def _last(self, question_id: str) -> tuple[Path | None, Path]:
        """(the claim that counts if there is one, the path of the next one)"""
        name = file_name(question_id)
        last, following, number = None, self.folder / name, 0
        while following.exists():
            number += 1
            last, following = following, self.folder / f"{name}~{number}"
        return last, following


def file_name(question_id: str) -> str:
    """A question's id as a file's name; of one that would be too long, the beginning and a digest.

    Examples: "q/1" gives q%2F1, ".." gives %2E., none gives %, and 300 times "a" a hundred times "a" and =, which no
    other name has, and 16 digits.
    """
    name = urllib.parse.quote(question_id, safe="").replace("~", "%7E")  # quote leaves a ~ as it is, and a dot
    name = re.sub(r"^\.", "%2E", name) or "%"
    return name if len(name) <= LONGEST_NAME else f"{name[:100]}={digest(question_id.encode())}"


def owner(claim: Path) -> str:
    """Whose claim it is; empty where that can't be read yet."""
    try:
        return claim.read_text()
    except OSError as error:
        if error.errno not in GONE:
            raise
        return ""


def count_up(claim: Path) -> None:
    """Set the file's time a second later than it was: a counter that no clock can turn back."""
    next_ns = claim.stat().st_mtime_ns + 1_000_000_000
    os.utime(claim, ns=(next_ns, next_ns))


# Names: no two workers write one file or hold one claim

TRAINER = "trainer"  # grpo_train.py plays under this name; the run folder's own lock keeps it single


@contextmanager
def named_worker(run_dir: Path, wanted: str = "") -> Iterator[str]:
    """Hold a worker's name: the wanted one, or the first free one of host, host-2, host-3.

    A worker that is started again gets the name of the one that died, and with it its claims.
    """
    if wanted == TRAINER or (wanted and not re.fullmatch(r"\w[\w.-]*", wanted)):
        raise UserError(f"--worker {wanted} can't be used; take letters, digits, - and _, and not {TRAINER!r}")
    locks = run_dir / "workers"
    make_folder(locks)
    if wanted:
        taken = f"worker {wanted} is playing in {run_dir} already; give this one another --worker, or none"
        with locked(locks / f"{wanted}.lock", taken):
            yield wanted
        return
    with ExitStack() as stack:
        yield next(name for name in host_names() if _is_free(stack, locks / f"{name}.lock"))


def host_names() -> Iterator[str]:
    """Example: here, here-2, here-3 and so on."""
    host = socket.gethostname()
    yield host
    yield from (f"{host}-{number}" for number in itertools.count(2))


def _is_free(stack: ExitStack, path: Path) -> bool:
    """Take the lock if nobody holds it."""
    try:
        stack.enter_context(locked(path, f"{path} is held"))
    except UserError:
        return False
    return True
