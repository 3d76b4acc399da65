"""Worker names: a lock per name in the run folder, so that no two workers write one file or hold one claim."""

from __future__ import annotations

import itertools
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forage.errors import UserError
from forage.files import locked

TRAINER = "trainer"  # grpo_train.py plays under this name; the run folder's own lock keeps it single


@contextmanager
def named_worker(run_dir: Path, wanted: str = "") -> Iterator[str]:
    """Hold a worker's name: the wanted one, or the first free one of host, host-2, host-3.

    A worker that is started again gets the name of the one that died, and with it its claims.
    """
    if wanted == TRAINER or (wanted and not re.fullmatch(r"\w[\w.-]*", wanted)):
        raise UserError(f"--worker {wanted} can't be used; take letters, digits, - and _, and not {TRAINER!r}")
    locks = run_dir / "workers"
    locks.mkdir(parents=True, exist_ok=True)
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
