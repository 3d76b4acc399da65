"""Planning: the tool by which a policy names query templates of a library instead of writing its queries.

A template is a query with a slot for what the question is about, and a name, which the policy is told:

    {"name": "symptoms", "query": "[topic] symptoms signs"}

A plan names templates and the topic; the agent fills in the slots and searches for the queries as it does for others:

    <tool_call>{"name": "plan", "arguments": {"topic": "gout", "templates": ["symptoms"]}}</tool_call>

The plan's tokens are the policy's own, so whatever trains the policy trains how it plans. The queries are not: they are
no tokens of the episode. The library is part of the prompt, so agent.json keeps it whole, as it keeps the tools.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeGuard

from forage.errors import UserError
from forage.files import json_lines

SLOT = "[topic]"
PLAN = "plan"
NAME = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class QueryTemplate:
    """A query with a slot, and the name by which the policy asks for it."""

    name: str
    query: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ValueError(f"the name {self.name!r} must be one word of letters, digits and _")
        if not isinstance(self.query, str) or SLOT not in self.query:
            raise ValueError(f"the query of {self.name!r} must be text with {SLOT} where the topic goes")

    def about(self, topic: str) -> str:
        """The query for a topic. Example: "[topic] signs" about "gout" is "gout signs"."""
        return " ".join(self.query.replace(SLOT, topic).split())


@dataclass(frozen=True, slots=True)
class Planned:
    """A search that a plan asks for."""

    template: str
    query: str


class PlanFault(Exception):
    """Why a plan can't be followed: the protocol's name of the fault, and what the policy reads."""

    def __init__(self, name: str, explanation: str) -> None:
        super().__init__(explanation)
        self.name = name


def plan_spec(templates: Sequence[QueryTemplate]) -> dict[str, Any]:
    """What the policy is told of the tool, as of others (forage/agent/tools.py). The names alone, as prompts are to be
    short: what a template says is learnt from what it finds."""
    names = ", ".join(template.name for template in templates)
    return {
        "description": f"Searches for a topic by templates, the best first: {names}.",
        "parameters": {
            "type": "object",
            "properties": {
                "topic": {"type": "string"},
                "templates": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["topic", "templates"],
        },
    }


def searches_of(arguments: object, templates: Sequence[QueryTemplate], max_query: int) -> tuple[Planned, ...]:
    """The searches that a plan's arguments ask for, in its order; raises PlanFault.

    Example: {"topic": "gout", "templates": ["symptoms"]} gives Planned("symptoms", "gout symptoms signs").
    """
    if not _fits(arguments):
        wanted = '{"topic": string, "templates": [names]}'
        raise PlanFault("bad_arguments", f'the "arguments" of "{PLAN}" must be {wanted}')
    by_name = {template.name: template for template in templates}
    choice, topic = f"choose among {', '.join(by_name)}", arguments["topic"].strip()
    if not topic:
        raise PlanFault("no_topic", 'the "topic" is empty; say what the question is about')
    if not arguments["templates"]:
        raise PlanFault("no_template", f"the plan names no template; {choice}")
    if unknown := [name for name in arguments["templates"] if name not in by_name]:
        # A long name is not repeated in whole: what it says is the policy's, and would fill the episode.
        raise PlanFault("unknown_template", f'there is no template "{_plain(unknown[0])}"; {choice}')
    names = dict.fromkeys(arguments["templates"])  # one that is named twice is searched for once
    planned = tuple(Planned(name, by_name[name].about(topic)) for name in names)
    if any(len(each.query) > max_query for each in planned):
        raise PlanFault("long_query", 'the "topic" is too long; use a few words')
    return planned


def _fits(arguments: object) -> TypeGuard[dict[str, Any]]:
    if not isinstance(arguments, dict) or arguments.keys() != {"topic", "templates"}:
        return False
    names = arguments["templates"]
    return (
        isinstance(arguments["topic"], str) and isinstance(names, list) and all(isinstance(name, str) for name in names)
    )


def _plain(name: str) -> str:
    """A name as an error may repeat it: short, without what could be a tag. Example: "a <b>" gives "a b"."""
    return re.sub(r"[^\w -]", "", name)[:30]


def write_plan(topic: str, templates: Sequence[str]) -> str:
    """A well-formed plan, for demonstrations."""
    call = {"name": PLAN, "arguments": {"topic": topic, "templates": list(templates)}}
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def library_of(rows: Sequence[Mapping[str, Any]]) -> tuple[QueryTemplate, ...]:
    """A library of name and query per row; raises ValueError. What else a row has is for people."""
    templates: list[QueryTemplate] = []
    for row in rows:
        if not isinstance(row, Mapping) or not {"name", "query"} <= row.keys():
            raise ValueError('a template needs a "name" and a "query"')
        templates.append(QueryTemplate(row["name"], row["query"]))
        if templates[-1].name in {template.name for template in templates[:-1]}:
            raise ValueError(f"there are two templates {templates[-1].name!r}")
    return tuple(templates)


def read_library(path: Path) -> tuple[QueryTemplate, ...]:
    """The library in a file of one template per line."""
    if not path.is_file():
        raise UserError(
            f"--query-templates {path} does not exist; "
            "python -m forage.evaluation.strategies.template_library writes one"
        )
    rows: list[Any] = []
    for number, row in json_lines(path):
        rows.append(row)
        try:
            library_of(rows)
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}; mend that line, or build the library again") from error
    if not rows:
        raise UserError(
            f"--query-templates {path} has no templates; build the library again, or leave --query-templates out"
        )
    return library_of(rows)


def told(templates: Sequence[QueryTemplate]) -> str:
    """A library in a few words that tell it from others. Example: "2 templates (1b4f0e98)"; without any, "none"."""
    rows = json.dumps([asdict(template) for template in templates])
    digest = hashlib.sha256(rows.encode()).hexdigest()[:8]
    return f"{len(templates)} templates ({digest})" if templates else "none"
