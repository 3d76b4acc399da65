"""Manifest: the JSON file in a folder that says what makes its figures comparable, a value or a digest for each part.

A policy, a store, a run and an evaluation each have one. Whoever goes on with such a folder compares what it would
write now with what is there, and is refused where the two contradict each other. Code is known by whole files, comments
and all: those that define a reward, a tool or a way of answering, and all files of this project, or of the user's own,
that they import.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import operator
import re
import sysconfig
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from forage.errors import UserError, flag
from forage.files import replacing
from forage.text import from_json, typed, without_passwords

LIBRARIES = tuple(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib"))
ROOT = Path(__file__).resolve().parents[1]
CONTENTS = operator.attrgetter("cell_contents")  # of a closure's cell
PLAIN = (str, bytes, int, float, type(None), Path, re.Pattern)
T = TypeVar("T")


def write_manifest(path: Path, parts: Mapping[str, Any]) -> None:
    with replacing(path) as file:
        json.dump(parts, file, indent=1)
        file.write("\n")


def read_manifest(path: Path, way_out: str) -> dict[str, Any]:
    """The parts; one line if the file is damaged. Example of a way out: "make the policy again"."""
    try:
        parts = from_json(path.read_bytes())
        if not isinstance(parts, dict):
            raise ValueError("it holds no object")
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {way_out}") from error
    return parts


def read_manifest_as(kind: type[T], path: Path, way_out: str, **more: Any) -> T:
    """The parts, and `more`, as a dataclass; one line if a field is wrong."""
    try:
        return typed(kind, read_manifest(path, way_out) | more)
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {way_out}") from error


def agree(path: Path, now: Mapping[str, Any], way_out: str, free: Collection[str] = ()) -> None:
    """Write the manifest of a new folder; refuse one that contradicts it, but for the parts that are free to change."""
    if path.exists() and (words := contradictions(now, read_manifest(path, f"put it back, or {way_out}"), free)):
        raise UserError(f"{path.parent} was begun with {'; '.join(words)}: give that, or {way_out}")
    write_manifest(path, now)


def contradictions(now: Mapping[str, Any], before: Mapping[str, Any], free: Collection[str] = ()) -> list[str]:
    """Words for each part that both know and that differs. What only one of them knows contradicts nothing.

    Example: {"options": {"epochs": 2}, "data": "c0de"} after {"options": {"epochs": 1}, "data": "beef"} gives
    ["--epochs 1, not 2", "another data"].
    """
    new, old = flat(now), flat(before)
    names = [name for name in new if name in old and name not in free and new[name] != old[name]]
    files = [name.removeprefix("code.") for name in names if name.startswith("code.")]
    more = f" and {len(files) - 3} more files" if len(files) > 3 else ""
    return [
        f"{flag(name.rpartition('.')[2])} {shown(old[name])}, not {shown(new[name])}"
        if name.startswith("options.") else f"another {name}" for name in names if not name.startswith("code.")
    ] + [f"another {', '.join(files[:3])}{more}"][: len(files)]  # fmt: skip


def shown(value: object) -> str:
    """A value as the command line takes it. Example: [2, 1] gives "2 1"."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def plain(options: Any) -> dict[str, Any]:
    """A dataclass of options as JSON values, without the passwords in addresses."""
    return json.loads(without_passwords(json.dumps(asdict(options), default=str)))


def flat(parts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Example: {"a": 1, "b": {"c": 2}} gives {"a": 1, "b.c": 2}."""
    rows: dict[str, Any] = {}
    for name, value in parts.items():
        rows |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return rows


# Digests


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Empty for a missing file."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def code_of(*functions: Any) -> dict[str, str]:
    """Digests of the files that rewards, tools or ways of answering come from, and of what these import, by file.

    Example: {"forage/agent/rewards.py": "9f2c...", "my_rewards.py": "03ab..."}. Which Python runs, and how a checkout
    ends its lines, makes no difference.
    """
    read: dict[Path, bytes] = {}
    waiting = [path for function in functions for part in behind(function) if (path := source_file(part))]
    while waiting:
        path = waiting.pop()
        if path not in read:
            read[path] = path.read_bytes().replace(b"\r\n", b"\n")
            waiting += imported_files(path, read[path]) if path.suffix == ".py" else []  # else it is compiled
    digests = defaultdict[str, list[str]](list)
    for path, content in read.items():  # a user's may lie anywhere
        digests[str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name].append(digest(content))
    return {name: digest("".join(sorted(found)).encode()) for name, found in sorted(digests.items())}


def made_of(function: Any) -> str:
    """Digest of what a reward, a tool or a way of answering is: which functions and plain values it is made of.

    Example: partial(f, scale=2) differs from partial(f, scale=3) and partial(g, scale=2). What f does is in its file.
    """
    words = []
    for part in behind(function):
        name = f"{getattr(source_file(part), 'name', '')}:{getattr(part, '__qualname__', type(part).__qualname__)}"
        words.append(repr(part) if isinstance(part, PLAIN) else name)
    return digest("\n".join(words).encode())


def behind(thing: Any, inside: tuple[Any, ...] = ()) -> Iterator[Any]:
    """A function or a value, and all that a partial function, a closure, a callable dataclass or a collection holds.

    Example: partial(f, scale=2) gives itself, f, "scale" and 2, beside the collections that these are in.
    """
    if any(thing is one for one in inside):  # a function that calls itself
        return
    yield thing
    if isinstance(thing, partial):
        parts: Iterable[Any] = (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, Mapping | list | tuple):
        parts = thing.items() if isinstance(thing, Mapping) else thing
    elif callable(thing) and is_dataclass(type(thing)):
        parts = [getattr(thing, each.name) for each in fields(thing) if each.compare]
    else:  # functools.cache keeps the function as __wrapped__
        parts = [getattr(thing, "__wrapped__", None), *map(CONTENTS, getattr(thing, "__closure__", None) or ())]
    for part in parts:
        yield from behind(part, (*inside, thing))


def source_file(thing: Any) -> Path | None:
    """The file that defines a function, a class or a callable object; None for a library's."""
    try:
        path = Path(inspect.getfile(thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)))
    except TypeError:  # built in
        return None
    return path.resolve() if is_own(path) else None


def is_own(path: Path) -> bool:
    """Whether a file is this project's or the user's, wherever the project is installed."""
    real = path.resolve()
    mine = Path(__file__).resolve().parent in real.parents
    return path.exists() and (mine or not (str(real).startswith(LIBRARIES) or any(map(holds_packages, real.parents))))


@cache
def holds_packages(folder: Path) -> bool:
    """Whether pip installed packages there, as with --target or into an environment below this one."""
    return any(folder.glob("*.dist-info"))


def imported_files(importer: Path, source: bytes) -> Iterator[Path]:
    """Files of the modules that a module imports. What a script's `main` imports computes no reward."""
    parts = (part for part in ast.parse(source).body if getattr(part, "name", "") != "main")
    for node in (node for part in parts for node in ast.walk(part)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.level:
            start = importer.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            modules = (start, *map(start.joinpath, names))
            yield from (
                file for each in modules for file in (Path(f"{each}.py"), each / "__init__.py") if file.is_file()
            )
            continue
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
        yield from (path for name in names if (path := own_module(name)))


@cache
def own_module(name: str) -> Path | None:
    """The file of a module of this project or of the user's; None for a library's, and for a name that is no module.

    A library is known by its first name: to look further would import it.
    """
    first = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(first)
        # A package without __init__.py has folders only.
        if spec and name != first and is_own(Path(spec.origin or (spec.submodule_search_locations or [""])[0])):
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # a function of the module
        return None
    return Path(spec.origin).resolve() if spec and spec.origin and is_own(Path(spec.origin)) else None
