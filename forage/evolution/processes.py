"""Processes: a stage in a process of its own, which is told of a stop and waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from forage.cli import Terminated


def run_module(command: Sequence[str], api_key: str = "") -> int:
    """The exit status of `python -m` with this module and arguments; 128 and a signal's number if that ended it.

    The process has a session of its own, so a terminal's Ctrl-C reaches this one alone. It is handed on once, as
    SIGTERM is, and the process clears away what is half-written before this one ends.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {"VLLM_API_KEY": api_key} if api_key else {}
    process = subprocess.Popen([sys.executable, "-m", *command], env=environment, start_new_session=True)  # noqa: S603
    try:
        status = process.wait()
    except KeyboardInterrupt as stop:
        process.send_signal(signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)
        process.wait()
        raise
    finally:
        if process.poll() is None:  # a second Ctrl-C
            process.kill()
            process.wait()
    return status if status >= 0 else 128 - status
