"""Heartbeat: a file touched whenever a process makes progress, so that a health check notices one that hangs.

Its time is the machine's uptime, not the date: a clock that is set makes no process look dead, or alive.

HEARTBEAT=/tmp/heartbeat python grpo_train.py ...
HEARTBEAT=/tmp/heartbeat python -m forage.heartbeat       exits with 1 if the file is older than HEARTBEAT_SECONDS (900)
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def beat() -> None:
    """Touch the file; without HEARTBEAT, do nothing."""
    if path := os.environ.get("HEARTBEAT"):
        if not Path(path).exists():
            Path(path).touch()
        now = time.monotonic_ns()
        os.utime(path, ns=(now, now))


def silent_for() -> float:
    """Seconds since the last beat; infinity if there was none since the machine started."""
    try:
        silent = time.monotonic() - Path(os.environ.get("HEARTBEAT", "")).stat().st_mtime
    except FileNotFoundError:
        return float("inf")
    return silent if silent >= 0 else float("inf")


if __name__ == "__main__":
    silent, most = silent_for(), float(os.environ.get("HEARTBEAT_SECONDS", "900"))
    print(f"last heartbeat {silent:.0f} s ago")
    sys.exit(silent > most)
