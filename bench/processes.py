"""Processes that benchmarks measure in: each prints its figures, and one that fails says why in its last line."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from forage.errors import UserError

PEERS = Path(".venv-peers/bin/python")


def check_peers(python: Path) -> None:
    """Refuse to go on without the environment that has TRL."""
    if not python.exists():
        raise UserError(f"{python} is missing, which has TRL; run: make bench-env")


def output_of(name: str, command: Sequence[object]) -> str:
    """What a process prints."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{name} failed: {(done.stderr.strip().splitlines() or ['it printed nothing'])[-1]}")
    return done.stdout
