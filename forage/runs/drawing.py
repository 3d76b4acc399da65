"""Drawing: has a run's plots and page drawn by a process of their own, from what is in its folder.

Training neither waits for them nor ends where they fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from forage.runs.stats import StepStats
from forage.text import say

ROOT = Path(__file__).parents[2]  # of this package, wherever a script was started
DRAW_EVERY = 20.0  # seconds
COMMAND = (sys.executable, "-m", "forage.runs.report")


class Drawing:
    """Draws after a step with an evaluation, and after any that ends 20 seconds after the last drawing began.

    Example: steps end after 8, 16, 24, 32 and 50 seconds, the second one with an evaluation: drawn at 16 and 50.
    """

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir, self._clock, self._began = run_dir, clock, clock()
        self._process: subprocess.Popen[str] | None = None

    def after(self, stats: StepStats) -> None:
        """Draw, if it is time to; never two at once."""
        now = self._clock()
        if stats.evaluation is None and now - self._began < DRAW_EVERY:
            return
        if self._process is None or self._process.poll() is not None:
            self._began, self._process = now, self._start("--live")

    def finish(self) -> None:
        """Draw the whole run, wait for it, and print where it is, or why it is not."""
        if self._process is not None:
            self._process.wait()
        process = self._start()
        said = process.communicate()[0].strip().splitlines()[-1:]
        if process.returncode:
            again = f"python -m forage.runs.report {self._run_dir}"
            said = [f"{self._run_dir / 'run.html'} was not written ({''.join(said)}); {again} tries again"]
        for line in said:
            say(line)

    def _start(self, *more: str) -> subprocess.Popen[str]:
        command = [*COMMAND, str(self._run_dir), *more]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PYTHONPATH": path}
        )
