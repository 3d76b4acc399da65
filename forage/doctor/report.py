"""The report as text of 80 columns, or as JSON."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict

from forage.doctor.lines import Line, Report

WIDTH = 80
INDENT = 10
COLOURS = {"ok": "32", "choice": "36", "missing": "33", "problem": "31"}


def works(report: Report) -> bool:
    """Whether everything is there that the basic path needs, and what was named opens."""
    return not any(line.fails for lines in report.values() for line in lines)


def as_text(report: Report, *, colour: bool = False) -> str:
    groups = [f"{name}\n" + "\n".join(entry(line, colour=colour) for line in lines) for name, lines in report.items()]
    return "\n\n".join([*groups, verdict(report)])


def entry(line: Line, *, colour: bool = False) -> str:
    """The state and what it is about; then why, and the command, which is not broken so that it can be copied."""
    state = f"{line.state:8}"
    if colour:
        state = f"\033[{COLOURS[line.state]}m{state}\033[0m"
    first, *rest = wrapped(line.what) or [""]
    rows = [f"  {state}{first}", *(" " * INDENT + row for row in [*rest, *wrapped(line.why)])]
    return "\n".join([*rows, *([f"{' ' * INDENT}> {line.command}"] if line.command else [])])


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - INDENT, break_on_hyphens=False)


def verdict(report: Report) -> str:
    failing = [line for lines in report.values() for line in lines if line.fails]
    if not failing:
        return "Nothing is missing that the basic path needs. Next: make demo"
    names = textwrap.fill(", ".join(line.what for line in failing), WIDTH, break_on_hyphens=False)
    return f"Needed, and not in order ({len(failing)}):\n{names}"


def as_json(report: Report) -> str:
    groups = {name: [asdict(line) for line in lines] for name, lines in report.items()}
    return json.dumps({"works": works(report), "groups": groups}, indent=1)
