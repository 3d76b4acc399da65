"""Shortage: memory ran out where a step can't be tried again in the same process, as processes that share it stop.

It is noted in the run folder, so that the next start takes smaller micro-batches instead of dying at the same step, and
one that has died there three times says what to set.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from forage.errors import UserError
from forage.grpo.learner import Learner
from forage.grpo.run import Run
from forage.grpo.update import OutOfMemory
from forage.manifest import plain, read_manifest, write_manifest

FILE, MOST = "shortage.json", 3


@dataclass(frozen=True)
class Shortage:
    """The last one."""

    step: int
    times: int
    """How often memory has run out at this step."""
    budget: int
    """Tokens of a micro-batch to go on with."""
    settings: dict[str, Any]
    """With other settings it says nothing."""


def settings_of(run: Run) -> dict[str, Any]:
    options = run.options
    return plain(options.update.memory) | {"sharding": options.sharding, "offload": options.offload}


def last_shortage(run: Run) -> Shortage | None:
    path = run.options.run_dir / FILE
    known = Shortage(**read_manifest(path, "remove it")) if path.exists() else None
    return known if known and known.settings == settings_of(run) else None


def heed(run: Run, learner: Learner) -> None:
    """Begin with micro-batches that an earlier start came to; refuse to die at one step for ever."""
    last = last_shortage(run)
    if last is None:
        return
    if last.step == run.step and last.times >= MOST:
        raise UserError(
            f"memory ran out {last.times} times at step {run.step}, however small the micro-batches; give "
            "--gradient-checkpointing, --offload optimizer, a lower --token-budget, or more GPUs (in .env: TRAIN_ARGS, "
            "OFFLOAD, TRAIN_PROCESSES), then re-run to resume"
        )
    learner.lowered_budget = last.budget
    if run.lead:
        print(f"memory ran out at step {last.step}: continuing with micro-batches of {last.budget} tokens")


def note(run: Run, error: OutOfMemory) -> None:
    """Any of the processes may be the one that ran short; if several are, they write the same."""
    last = last_shortage(run)
    times = last.times + 1 if last and last.step == run.step else 1
    known = Shortage(run.step, times, error.budget, settings_of(run))
    write_manifest(run.options.run_dir / FILE, asdict(known))
