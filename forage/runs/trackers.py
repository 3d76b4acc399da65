"""Trackers: each step's figures in wandb or trackio.

Nothing depends on a tracker: the run folder has all figures. A tracker shows many runs in one place.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from forage.errors import UserError, first_line
from forage.runs.stats import StepStats

Kind = Literal["wandb", "trackio", "none"]
Choice = Literal["auto", "wandb", "trackio", "none"]
Log = Callable[[int, Mapping[str, float]], None]
"""Sends a step's figures; a step that is repeated after a resume may be sent again."""
PROJECT = "forage"
# What auto takes: trackio keeps all runs in one place of this machine, and its dashboard needs no account.
AGENT_ORDER: tuple[Kind, ...] = ("trackio",)
REWRITER_ORDER: tuple[Kind, ...] = ("wandb", "trackio")


def flatten(stats: StepStats) -> dict[str, float]:
    """A step's figures with flat names.

    Example: rewards {"mrr": [0, 1]}, training {"policy_loss": -.1, "kl": .2}, stops {"answer": 3} and seconds
    {"rollout": 9} give reward/mrr .5, reward_std/mrr .5, loss/policy -.1, training/kl .2, stops/answer 3,
    seconds/rollout 9; then groups/..., episodes/..., memory_gib, and at steps with an evaluation evaluation/mrr,
    evaluation_low/mrr and evaluation_high/mrr. Workers' and servers' figures are worker/a/episodes and the like.
    """
    flat: dict[str, float] = {}
    for name, summary in stats.summary.items():
        flat |= {f"reward/{name}": summary["mean"], f"reward_std/{name}": summary["std"]}
    for name, interval in (stats.evaluation or {}).items():
        flat |= {f"evaluation/{name}": interval["mean"], f"evaluation_low/{name}": interval["low"]}
        flat[f"evaluation_high/{name}"] = interval["high"]
    for name, value in stats.training.items():
        flat[f"loss/{name.removesuffix('_loss')}" if name.endswith("_loss") else f"training/{name}"] = value
    parts: dict[str, Mapping[str, Any]] = {
        "groups": stats.groups, "flat": stats.flat_by_reward, "episodes": stats.episodes, "stops": stats.stops,
        "faults": stats.faults, "seconds": stats.seconds, "workers": stats.workers, "servers": stats.servers,
    }  # fmt: skip
    flat |= {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
    flat["memory_gib"] = stats.memory_gib
    return {name: float(value) for name, value in flat.items()}


def chosen(choice: Choice, order: Sequence[Kind]) -> Kind:
    """auto is the first of `order` whose library is installed, else none, with a line that says how to get one."""
    if choice != "auto":
        return choice
    if found := next(filter(installed, order), None):
        return found
    print("no tracker is installed, so metrics stay in the run folder; pip install -r requirements/trackers.txt")
    return "none"


def installed(library: str) -> bool:
    """Whether a library can be imported; a folder of its name, as wandb leaves them beside a run, is no library."""
    spec = importlib.util.find_spec(library)
    return spec is not None and spec.origin is not None


@contextlib.contextmanager
def open_tracker(kind: Kind, run_dir: Path, config: Mapping[str, Any]) -> Iterator[Log]:
    """The tracker of a run folder, under its name; a missing library is told before anything is logged."""
    if kind == "none":
        yield lambda step, values: None
        return
    if not installed(kind):
        raise UserError(f"--report-to {kind} needs its library: pip install {kind}")
    with (_wandb if kind == "wandb" else _trackio)(run_dir, json.loads(json.dumps(config, default=str))) as log:
        yield log


@contextlib.contextmanager
def _wandb(run_dir: Path, config: dict[str, Any]) -> Iterator[Log]:
    import wandb

    # Otherwise three lines of advice to install it, if openai is loaded.
    os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # reports of its own crashes, also of offline runs
    offline = "WANDB_MODE" not in os.environ and not wandb.login(prompt=False)
    if offline:
        print(
            f"wandb: no key, so the run stays offline; `wandb login`, then `wandb sync {run_dir}/wandb/offline-run-*`"
        )
    # Kept in a file, so that a resumed run stays the same run.
    name = run_dir / "wandb" / "run_id"
    if not name.exists():
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text(uuid.uuid4().hex[:8])
    # wandb's capture of the console would disturb live tables.
    settings = wandb.Settings(console="off", silent=offline)
    try:
        run = wandb.init(
            project=PROJECT, name=run_dir.name, dir=str(run_dir), id=name.read_text(), resume="allow", config=config,
            mode="offline" if offline else None, settings=settings,
        )  # fmt: skip
    except wandb.Error as error:
        raise UserError(f"wandb: {first_line(error)}; WANDB_MODE=offline keeps the run on this machine") from error
    with run:
        # By a figure of our own, as wandb drops what is logged of a step that it has passed.
        run.define_metric("*", step_metric="step")
        yield lambda step, values: run.log({**values, "step": step})


@contextlib.contextmanager
def _trackio(run_dir: Path, config: dict[str, Any]) -> Iterator[Log]:
    import trackio

    # It prints ten lines at its start and one at its end; one of ours says how to see the run. trackio.finish() and not
    # run.finish(), after which trackio would finish the run, and print, once more as Python exits.
    with contextlib.redirect_stdout(io.StringIO()):
        run = trackio.init(project=PROJECT, name=run_dir.name, config=config, resume="allow")
    print(f"trackio: this run beside others: trackio show --project {PROJECT}")
    try:
        yield lambda step, values: run.log(dict(values), step=step)
    finally:
        with contextlib.redirect_stdout(io.StringIO()):
            trackio.finish()  # type: ignore[no-untyped-call]
