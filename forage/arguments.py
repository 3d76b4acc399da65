"""Checks of a command line before tyro parses it, so that a misspelt flag or a value of a wrong type is one line too.

tyro's own messages are boxes of up to twenty lines. What is not found here, tyro still finds.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence

from forage.errors import UserError

TYPES = {"INT": (int, "a whole number"), "FLOAT": (float, "a number")}
SWITCH_VALUES = ("True", "False", "None")  # tyro reads them after an option that is on, off or left to the script


def check_arguments(arguments: Sequence[str], kinds: Mapping[str, str], help_flag: str) -> None:
    """Refuse what is no option, and a value that its option can't take.

    `kinds` are the options as in the help: {"--max-steps": "INT", "--weights": "FLOAT ...", "--[no-]pool": "",
    "--mode": "hybrid|dense", "QUERY": ""}, the last a positional argument.
    """
    known = dict(_spellings(kinds))
    stray_taken = any(not name.startswith("--") for name in kinds)
    for flag, values in _grouped(arguments):
        if flag and flag not in known:
            near = nearest(flag, known)
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise UserError(f"{flag} is no option; {meant}{help_flag} shows the options")
        taken = _taken_by(flag, values, known.get(flag, "")) if flag else 0
        if values[taken:] and not stray_taken:
            raise UserError(f"{values[taken]} belongs to no option; {help_flag} shows the options")


def check_required(arguments: Sequence[str], required: Mapping[str, str], help_flag: str) -> None:
    """Refuse a command line without an option that has no default; `required` says what each is."""
    given = {flag for flag, _ in _grouped(arguments)}
    for name, meaning in required.items():
        if name not in given:
            raise UserError(f"{name} is missing ({meaning.rstrip('.')}); {help_flag} shows the options")


def nearest(flag: str, names: Mapping[str, str]) -> list[str]:
    """The names that were probably meant: at most two that begin like it, or else the one that looks most like it.

    Example: --lora gives --lora-model, --ouput-dir gives --output-dir.
    """
    longer = [name for name in names if name.startswith(flag)]
    return longer[:2] or difflib.get_close_matches(flag, names, n=1)


def _spellings(kinds: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, kind in kinds.items():
        if name.startswith("--"):
            yield name.replace("[no-]", ""), kind
            if "[no-]" in name:
                yield name.replace("[no-]", "no-"), kind


def _grouped(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the values after it; what comes before the first flag, under "".

    Example: ["a", "--max_steps=3", "--x", "1", "-2"] gives ("", ["a"]), ("--max-steps", ["3"]), ("--x", ["1", "-2"]).
    """
    flag, values = "", []
    for argument in arguments:
        if not argument.startswith("-") or _is(float, argument):
            values.append(argument)
            continue
        yield flag, values
        name, equals, value = argument.partition("=")
        flag, values = name.replace("_", "-"), [value] if equals else []
    yield flag, values


def _taken_by(flag: str, values: Sequence[str], kind: str) -> int:
    """How many of the values belong to the flag; refuses one that it can't take."""
    if not kind:
        return 1 if values and values[0] in SWITCH_VALUES else 0
    several, pieces = kind.endswith(("...", "MAPPING")), kind.removesuffix(" ...").split("|")
    if not several and not values:
        raise UserError(f"{flag} needs a value: {_wanted(pieces, several)}")
    taken = len(values) if several else 1
    for value in values[:taken]:
        if not _fits(value, pieces):
            raise UserError(f"{flag} {value}: give {_wanted(pieces, several)}")
    return taken


def _fits(value: str, pieces: Sequence[str]) -> bool:
    """Whether one of the pieces (INT, FLOAT, a choice, or a type of which nothing is known here) takes the value."""
    others = any((piece.isupper() and piece not in TYPES) or " " in piece for piece in pieces)
    numbers = (TYPES[piece][0] for piece in pieces if piece in TYPES)
    return others or value == "None" or value in pieces or any(_is(number, value) for number in numbers)


def _wanted(pieces: Sequence[str], several: bool) -> str:
    types = [TYPES[piece][1] for piece in pieces if piece in TYPES]
    choices = [piece for piece in pieces if not piece.isupper()]
    wanted = " or ".join([*types, *([", ".join(choices)] if choices else [])]) or "text"
    return f"{wanted}, or several with blanks between them" if several else wanted


def _is(number: type, text: str) -> bool:
    try:
        number(text)
    except ValueError:
        return False
    return True
