"""The output folder of an evaluation: one process writes it, and all its episodes are played in the same way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forage.agent.options import AGENT_FILE, AgentSettings, difference, quoted, read_agent, write_agent
from forage.errors import UserError, flag
from forage.evaluation.options import FREE, EvaluationOptions
from forage.files import replacing
from forage.manifest import contradictions, file_digest, plain, read_manifest
from forage.sole_writer import filling_folder


@contextmanager
def output_folder(options: EvaluationOptions) -> Iterator[None]:
    """Lock the output folder, and refuse options that differ from those its episodes were played with."""
    out = options.output_dir
    logs = (str(path.relative_to(out)) for kind in ("episodes", "outcomes") for path in (out / kind).glob("*"))
    with filling_folder(out, *logs):
        keep_options(options)
        keep_scorer(options)
        yield


def keep_options(options: EvaluationOptions) -> None:
    """Record the options that must not change in config.json."""
    path = options.output_dir / "config.json"
    kept = {name: value for name, value in plain(options).items() if name not in FREE}
    kept["place"] = {"store": options.place.store}  # how long to wait for its server may change
    before = read_manifest(path, "give another --output-dir") if path.exists() else {}
    if words := contradictions({"options": kept}, {"options": before}):
        refuse(options.output_dir, "; ".join(words))
    with replacing(path) as file:
        json.dump(kept, file, indent=1)


def keep_scorer(options: EvaluationOptions) -> None:
    """Record by which scorer the learned systems choose in scorer.json, once one of them is played."""
    if options.scorer is None or not options.learned:
        return
    path = options.output_dir / "scorer.json"
    now = {"scorer": str(options.scorer), "card": file_digest(options.scorer / "scorer.json")}
    before = json.loads(path.read_text()) if path.exists() else now
    if before["card"] != now["card"]:
        name = before["scorer"]
        refuse(options.output_dir, f"--scorer {name}" + " as it was then" * (name == now["scorer"]))
    with replacing(path) as file:
        json.dump(before, file, indent=1)


def keep_agent(settings: AgentSettings, out: Path) -> None:
    """Record how the agent plays in agent.json."""
    if (out / AGENT_FILE).exists() and (words := played_by_another(read_agent(out), settings)):
        refuse(out, words)
    write_agent(settings, out)


def played_by_another(before: AgentSettings, now: AgentSettings) -> str:
    """Words for the first setting that differs from before; empty if none does."""
    name = difference(before, now)
    return f"{flag(name)} {quoted(getattr(before, name))}, not {quoted(getattr(now, name))}" if name else ""


def refuse(out: Path, words: str) -> None:
    raise UserError(f"{out} was begun with {words}; give that, or another --output-dir")
