"""Tools: what the policy may call beside search. Users put them into `get_tools` of grpo_rollout.py.

A tool is a function that returns text, or queries to search for. The policy is told its name, the first paragraph of
its docstring, and its parameters, which are text, numbers or truth values:

    def calculate(expression: str) -> str:
        '''Works out an expression, such as 3 * (4 + 5).'''

Queries are searched for as if the policy had written them: they count as the episode's searches, in their order, and
the policy reads all that they find, each passage once (forage/extras/planning/tool.py is such a tool).

What is told is part of every prompt, so agent.json keeps it beside the policy, as it keeps how the agent searches.
"""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from forage.errors import UserError

# The script whose dictionary users edit. It is named here instead of handed down, since how an agent plays comes from
# agent.json in every script, its tools as well.
SCRIPT = "grpo_rollout"
SEARCH = "search"
TYPES: Mapping[type, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
TYPE_NAMES = ", ".join(kind.__name__ for kind in TYPES)
NAME = re.compile(r"[a-z][a-z0-9_]*")

ToolFunction = Callable[..., str | list[str]]
Spec = Mapping[str, Any]
"""What the policy is told of a tool: "description" and "parameters", as chat templates and servers take them."""


class ToolError(Exception):
    """A call that a tool can't answer; the policy reads why. Any other error of a tool ends the run."""


def own_tools() -> dict[str, ToolFunction]:
    """The tools of `get_tools`, by name."""
    return importlib.import_module(SCRIPT).get_tools()


def own_agent() -> Any:
    """What plays in the place of our own loop, as `get_agent` says; None if nothing does."""
    return importlib.import_module(SCRIPT).get_agent()


def specs_of(tools: Mapping[str, ToolFunction]) -> dict[str, Spec]:
    """What the policy is told of each tool."""
    return {name: spec_of(name, function) for name, function in tools.items()}


def spec_of(name: str, function: ToolFunction) -> Spec:
    """Read from the function. Example: for `calculate` above, {"description": "Works out an expression, such as
    3 * (4 + 5).", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required":
    ["expression"]}}."""
    where = f"tool {name!r} in get_tools of {SCRIPT}.py"
    if not NAME.fullmatch(name) or name == SEARCH:
        raise UserError(f"{where}: name it by lower-case letters, digits and _, and not {SEARCH!r}")
    description = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
    if not description or "<" in description:
        raise UserError(f"{where}: its docstring must tell the policy what it does, in words without tags")
    parameters = inspect.signature(function).parameters
    hints = typing.get_type_hints(function)
    properties = {}
    for parameter in parameters.values():
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not by_name or hints.get(parameter.name) not in TYPES:
            raise UserError(f"{where}: annotate its parameter {parameter.name!r} with one of {TYPE_NAMES}")
        properties[parameter.name] = {"type": TYPES[hints[parameter.name]]}
    required = [each.name for each in parameters.values() if each.default is each.empty]
    return {
        "description": description,
        "parameters": {"type": "object", "properties": properties, "required": required},
    }


def functions_for(specs: Mapping[str, Spec]) -> dict[str, ToolFunction]:
    """The functions of a policy's tools; an error if they are not what the policy was trained with."""
    if not specs:
        return {}
    tools = own_tools()
    for name, spec in specs.items():
        if name not in tools:
            raise UserError(f"the policy was trained with tool {name!r}; put it back into get_tools of {SCRIPT}.py")
        if spec_of(name, tools[name]) != spec:
            raise UserError(
                f"tool {name!r} in get_tools of {SCRIPT}.py has another docstring or other parameters than when the "
                "policy was trained; put them back, as they are part of its prompt"
            )
    return {name: tools[name] for name in specs}


def fits(arguments: Any, spec: Spec) -> TypeGuard[dict[str, Any]]:
    """Whether a call's arguments are those that the tool takes. Examples: {"expression": "1 + 1"} fits `calculate`,
    {"expression": 2} and {} don't."""
    parameters = spec["parameters"]
    properties = parameters["properties"]
    if not isinstance(arguments, dict) or not set(parameters["required"]) <= arguments.keys() <= properties.keys():
        return False
    # JSON's types: true is no number, and 3 is one.
    kinds = {str: ("string",), bool: ("boolean",), int: ("integer", "number"), float: ("number",)}
    return all(properties[name]["type"] in kinds.get(type(value), ()) for name, value in arguments.items())


def shape(spec: Spec) -> str:
    """How a tool's arguments look. Example: {"expression": string}."""
    return "{" + ", ".join(f'"{name}": {each["type"]}' for name, each in spec["parameters"]["properties"].items()) + "}"


def example_call(name: str, spec: Spec) -> str:
    """How a call looks, for prompts. Example: {"name": "calculate", "arguments": {"expression": ...}}."""
    properties = spec["parameters"]["properties"]
    arguments = ", ".join(f'"{each}": ...' for each in properties)
    return f'{{"name": "{name}", "arguments": {{{arguments}}}}}'
