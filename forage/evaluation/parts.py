"""Parts: an evaluation whose questions several processes or machines played, each in a folder of its own, put together.

Samples are seeded by question, so parts hold what one process would have sampled. A part that was played in another way
is refused: with other options, another agent, other weights or another scorer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forage.agent.options import read_agent
from forage.errors import UserError
from forage.evaluation.options import EvaluationOptions
from forage.evaluation.outcomes import OutcomeLog
from forage.evaluation.output import played_by_another
from forage.evaluation.policies import Policy
from forage.files import replacing
from forage.manifest import contradictions


def put_together(options: EvaluationOptions, policies: Sequence[Policy]) -> None:
    """Add to the output folder what --parts have of questions that it lacks."""
    for part in options.parts:
        check_played_alike(part, options.output_dir, policies)
        for policy in policies:
            for path in sorted((part / "outcomes" / policy.name).glob("*.jsonl")):
                name = f"{policy.name}/{path.stem}"
                OutcomeLog(options.output_dir, name).take_in(OutcomeLog(part, name))


def check_played_alike(part: Path, out: Path, policies: Sequence[Policy]) -> None:
    if words := "; ".join(
        contradictions({"options": read(out / "config.json")}, {"options": read(part / "config.json")})
    ):
        refuse(part, words)
    if words := played_by_another(read_agent(part), read_agent(out)):
        refuse(part, words)
    known, expected = read(part / "policies.json"), read(out / "policies.json")
    for policy in policies:
        if policy.name in known and known[policy.name]["sha256"] != expected[policy.name]["sha256"]:
            refuse(part, f"{policy.name} of other weights")
    if (part / "scorer.json").exists():
        keep_scorer_of(part, out)


def keep_scorer_of(part: Path, out: Path) -> None:
    """The scorer that a part chose by becomes that of the whole, where none chose yet."""
    theirs = read(part / "scorer.json")
    if (out / "scorer.json").exists():
        if read(out / "scorer.json")["card"] != theirs["card"]:
            refuse(part, f"--scorer {theirs['scorer']}")
        return
    with replacing(out / "scorer.json") as file:
        json.dump(theirs, file, indent=1)


def read(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"{path} is missing: that evaluation has not begun; start it again, or leave out its --parts")
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is broken ({error}); put it back, or leave out its --parts") from error


def refuse(part: Path, words: str) -> None:
    raise UserError(f"--parts {part} was played with {words}; play it as the others, or leave it out")
