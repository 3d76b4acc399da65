"""Compare: how two runs differ, which differences can explain their figures, and those figures.

    python -m forage.runs.compare runs/a runs/b

Folders of policies or warm starts work too. Reads what each was started with (run.json or config.json, agent.json,
model.json, environment.json, code.diff) and its statistics. Contents are compared by digest, so folders may be moved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from forage.arguments import POSITIONAL, run_script
from forage.errors import UserError
from forage.manifest import digest, flat, read_manifest, shown
from forage.runs.page_data import curves
from forage.runs.stats import data_of, read_evaluations, read_stats, rewards_of, verdicts
from forage.text import say

LEARNT = "changes what is learnt"
# What each setting can do to figures, by its name; what no pattern fits changes what is learnt.
KINDS = {
    "may change anything (code.diff of both)": r"code\.",
    "changes what is measured": (
        r"data\.(eval|store)|embedder|(rewards|weights|tools|agent)\.|options\.(eval_(questions|temperature)|"
        r"rollout\.(temperature|place\.retriever))"
    ),
    LEARNT: r"(?!)",
    "noise, as another seed: draws and rounding": (
        r"environment\.|options\.(.*\.)?(seed|concurrency|engine\.engine|memory\..*|rollouts|sharding|offload|"
        r"sequence_parallel)$"
    ),
    "no effect on figures: paths, logs, what the above holds by content": (
        r"adapter$|options\.(run_dir|output_dir|overwrite|report_to|keep_adapters|eval_every|vllm_sleep|data$|"
        r"(rollout\.)?(search|place|engine)\.|rollout\.(data|policy|weights))"
    ),
}
YARDSTICK = r"(data\.(eval|store)|(rewards|weights|code)\.)"  # what must be equal for a verdict
FIGURES = r"(reward |held-out |entropy$|kl$|likelihood_gain$|flat groups|episodes: (searches|well_formed|distinct))"
FILES = ("run", "config", "agent", "model", "environment")
MOST = 12  # settings of one kind that are shown: of two environments many packages differ


def settings(folder: Path) -> dict[str, Any]:
    """What a folder says of its making, by flat names such as options.update.epochs, data.train, agent.k."""
    paths = {name: folder / f"{name}.json" for name in FILES}
    way_out = "put it back, or compare other folders"
    found = {name: read_manifest(path, way_out) for name, path in paths.items() if path.is_file()}
    if not found:
        raise UserError(f"{folder} has no {', '.join(f'{name}.json' for name in FILES)}; give the folder of a run")
    if (code := folder / "code.diff").is_file():
        commit, _, changes = code.read_bytes().partition(b"\n")
        found["code"] = {"commit": commit[:12].decode(errors="replace"), "changes": changes and digest(changes)}
    return flat({**found.pop("run", {}), **found.pop("config", {}), **found})


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names of the settings that differ, by what they can do to figures.

    Example: {"options.seed": 0, "agent.k": 3} and {"options.seed": 1, "agent.k": 5} give agent.k as what changes what
    is measured, and options.seed as noise.
    """
    names = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
    # Of an environment that only one of them kept nothing is known to differ.
    names = [name for name in names if not name.startswith("environment.") or (name in one and name in other)]
    kind = {name: next((kind for kind, each in KINDS.items() if re.match(each, name)), LEARNT) for name in names}
    return {each: [name for name in names if kind[name] == each] for each in KINDS if each in kind.values()}


def figures(one: Path, other: Path) -> Iterator[tuple[str, int, float, float]]:
    """Name, last step that both have, and the figure of each there."""
    first, second = (curves(read_stats(path), read_evaluations(path)) for path in (one, other))
    for name in filter(re.compile(FIGURES).match, first):
        a, b = dict(first[name]), dict(second.get(name, ()))
        if steps := a.keys() & b.keys():
            yield name, max(steps), a[max(steps)], b[max(steps)]


def card(one: Path, other: Path) -> Iterator[str]:
    """The lines to print."""
    first, second = settings(one), settings(other)
    found = differences(first, second)
    yield f"{one} (a) and {other} (b) differ in {sum(map(len, found.values()))} of {len(first | second)} settings"
    for kind, names in found.items():
        yield f"\n{kind}"
        for name in names[:MOST]:
            yield f"  {name:42} {shown(first.get(name, '-'))[-36:]} -> {shown(second.get(name, '-'))[-36:]}"
        if len(names) > MOST:
            yield f"  ... and {len(names) - MOST} more"
    if rows := list(figures(one, other)):
        yield f"\n{'figures at the last step that both have':40} {'step':>5} {'a':>9} {'b':>9} {'b - a':>9}"
    for name, step, a, b in rows:
        yield f"  {name:38} {step:5} {a:9.4f} {b:9.4f} {b - a:+9.4f}"
    if tested := [step for name, step, *_ in rows if name == "held-out overall"]:
        if apart := [name for each in found.values() for name in each if re.match(YARDSTICK, name)]:
            yield f"\nNo verdict, as the rewards are not of one measure: {', '.join(apart)} differ."
            return
        before, after = (rewards_of(path, tested[0]) for path in (one, other))
        yield from (f"\n{says}" for says in verdicts("b", "a", "overall", after, before, data_of(one)))


@dataclass(frozen=True)
class Options:
    """Say how two runs differ, and which differences can explain their figures."""

    one: Annotated[Path, POSITIONAL]
    """Folder of a run, a policy or a warm start."""
    other: Annotated[Path, POSITIONAL]
    """Folder to compare it with."""


def main(options: Options) -> None:
    for line in "\n".join(card(options.one, options.other)).split("\n"):
        say(line)


if __name__ == "__main__":
    run_script(main, description=__doc__)
