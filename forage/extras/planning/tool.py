"""Planning: a tool by which a policy names query templates of a library instead of writing its queries.

In get_tools of grpo_rollout.py, before the warm start:

    return {"plan": planner("library.jsonl")}

A template is a line of the library: a name, which the policy is told, and a query with a slot for the topic:

    {"name": "symptoms", "query": "[topic] symptoms signs"}

The policy names templates and a topic, and the agent searches for the queries:

    <tool_call>{"name": "plan", "arguments": {"topic": "gout", "templates": "symptoms, cure"}}</tool_call>

Paper: ReasonFlux, https://arxiv.org/abs/2502.06772. A large model writes about 500 thought templates of solutions. A
navigator plans a trajectory of templates for each problem, which it learns from pairs of trajectories, the better being
the one that solves more of the problems like it. At test time another model carries out each step with the template
that was retrieved for it, and the navigator changes the rest of its plan by what came out.

Here: a template is the shape of a query, counted in episodes (library.py). One policy plans, reads and answers: its
plan is a call that names templates, in their order, and it may plan again after it has read what they found. As the
call's tokens are its own, GRPO trains the plan on the episode's reward, in place of pairs.

Left out: templates of anything but a search, such as how to read or to answer; retrieval, since a dozen names fit into
the prompt; a second model that carries the plan out, which filling in a slot does not need; and the paper's reward,
which judges a plan by problems like the one at hand.

Where it doesn't help: on questions whose words are the best query already; where questions have no focus, since
nothing says where the slot goes; and no plan finds more than its templates' queries do. The policy may still write
queries of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from forage.agent.tools import ToolError
from forage.errors import UserError
from forage.files import json_lines

SLOT = "[topic]"
PLAN = "plan"
NAME = re.compile(r"\w+")
LONGEST_TOPIC = 200  # characters

Library = Mapping[str, str]
"""A library's queries by the names of their templates."""


def planner(path: str | Path, most: int = 2) -> Callable[[str, str], list[str]]:
    """The tool for a library; a plan may name as many as `most` templates."""
    library = read_library(Path(path))

    def plan(topic: str, templates: str) -> list[str]:
        return planned(library, topic, templates, most)

    # The names alone, as prompts are to be short: what a template says is learnt from what it finds.
    plan.__doc__ = f"Searches for a topic by at most {most} templates, the best first: {', '.join(library)}."
    return plan


def planned(library: Library, topic: str, templates: str, most: int) -> list[str]:
    """The queries of a plan, in its order. Example: "gout" and "symptoms" give ["gout symptoms signs"]."""
    names = list(dict.fromkeys(re.findall(r"\w+", templates)))  # one that is named twice is searched for once
    if not topic.strip() or len(topic) > LONGEST_TOPIC:
        raise ToolError('the "topic" must say in a few words what the question is about')
    if not 0 < len(names) <= most or not library.keys() >= set(names):
        raise ToolError(f'"templates" must be at most {most} of {", ".join(library)}')
    return [about(library[name], topic) for name in names]


def about(query: str, topic: str) -> str:
    """Example: "[topic] signs" about "gout" is "gout signs"."""
    return " ".join(query.replace(SLOT, topic).split())


def write_plan(topic: str, *templates: str) -> str:
    """A well-formed plan, for demonstrations."""
    call = {"name": PLAN, "arguments": {"topic": topic, "templates": ", ".join(templates)}}
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def read_library(path: Path) -> Library:
    """The library in a file of one template per line. What else a line has is for people."""
    if not path.is_file():
        raise UserError(f"the library {path} does not exist; python -m forage.extras.planning.library writes one")
    library: dict[str, str] = {}
    for number, row in json_lines(path):
        name, query = (str(row.get(key, "")) for key in ("name", "query")) if isinstance(row, dict) else ("", "")
        if not NAME.fullmatch(name) or name in library or SLOT not in query:
            raise UserError(
                f"{path}:{number}: a template needs a name, one word that no other has, and a query with {SLOT} in it; "
                "mend that line, or build the library again"
            )
        library[name] = query
    if not library:
        raise UserError(f"the library {path} has no templates; build it again")
    return library
