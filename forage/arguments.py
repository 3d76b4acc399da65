"""Arguments: a dataclass of options as flags, their help, and the values that a command line gives them.

A field is an option, the docstring below it its help; the fields of a dataclass within it are options under its
heading. A `bool` is a pair of flags, --x and --no-x, and so is a `bool | None`. Help imports nothing and comes at once.
`run_script` is what each script ends with: an error is one line.
"""

from __future__ import annotations

import ast
import errno
import importlib
import inspect
import math
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, BooleanOptionalAction
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from forage.errors import UserError, first_line
from forage.machine import is_here
from forage.manifest import flat, plain, read_manifest, shown
from forage.processes import is_first, world
from forage.text import one_line, say, without_passwords

POSITIONAL = "positional"  # Annotated[Path, POSITIONAL] is an argument without a flag
# Annotated[str, TRUST] runs code or says where requests and keys go: whoever starts a script names it, and no file.
TRUST = "trust"
FIXED = "fixed"  # in the metadata of a field without a flag

T = TypeVar("T")


@dataclass(frozen=True)
class Flag:
    """One option in the help. Example: "--k", "INT", "Passages a search shows.", "3", "How the agent plays."."""

    name: str
    value: str
    help: str
    default: str
    group: str
    field: str
    hint: Any
    trust: bool


class Parser(ArgumentParser):
    """argparse, whose errors are one line."""

    def __init__(self, way_out: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False, argument_default=SUPPRESS)
        self.way_out = way_out
        self._negative_number_matcher = re.compile(r"-\.?\d")  # its own takes -1e-4 for a flag

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else ";"
        raise UserError(f"{message.removeprefix('argument ')}{end} {self.way_out} shows the options")


def parse(options: Any, arguments: Sequence[str], command: str = "") -> Any:
    """The dataclass with the values given; of a union, the one that the first argument names.

    Example: {"max_steps": 3} of a dataclass with `max_steps: int` and ["--max-steps", "3"], or ["--max_steps=3"].
    """
    if not isinstance(options, type):
        subcommands = by_name(options)
        named = " ".join(arguments[:1])
        if named not in subcommands:
            wrong = f"{named} is unknown" if named else "a subcommand is missing"
            raise UserError(f"{wrong}; give one of {', '.join(subcommands)}")
        return parse(subcommands[named], arguments[1:], named)
    flags, parser = list(flags_of(options)), Parser(f"{command} --help" if command else "--help-all")
    for flag in flags:
        _add(parser, flag)
    found, strays = parser.parse_known_args([_dashed(argument) for argument in arguments])
    for stray in strays:
        name = stray.partition("=")[0]
        names = parser._option_string_actions
        # At most two that begin like it, or else the one that looks most like it.
        near = [each for each in names if each.startswith(name)][:2] or get_close_matches(name, names, n=1)
        wrong = f"{name} is no option" if stray.startswith("-") else f"{stray} belongs to no option"
        parser.error(f"{wrong}; did you mean {' or '.join(near)}?" if near else wrong)
    given = {name: value for name, value in vars(found).items() if value is not None}
    values = {flag.field: _whole(given[flag.field], flag) for flag in flags if flag.field in given}
    for flag in flags:
        if flag.default == "required" and flag.field not in values:
            parser.error(f"{flag.name} is missing ({flag.help.rstrip('.')})")
    return _filled(options, values, MISSING)


def by_name(options: Any) -> dict[str, type]:
    """The dataclasses of a union, each a subcommand."""
    return {option.__name__.lower(): option for option in get_args(options)}


def _dashed(argument: str) -> str:
    """Example: --max_steps=a_b gives --max-steps=a_b."""
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument


def _add(parser: ArgumentParser, flag: Flag) -> None:
    hint = _without_none(flag.hint)
    if hint is bool:
        parser.add_argument(flag.name.replace("[no-]", ""), dest=flag.field, action=BooleanOptionalAction)
        return
    several = get_origin(hint) in (tuple, Mapping)
    item = get_args(hint)[0] if several else hint
    choices, own = _choices(item)
    kind: dict[str, Any] = {"type": _one_of(choices, own=own) if choices else item}
    kind |= {"nargs": "*"} if several else {}
    if flag.name.startswith("--"):
        parser.add_argument(flag.name, dest=flag.field, **kind)
    else:
        # argparse would make its mark for what was not given, a text, into a Path.
        parser.add_argument(flag.field, **{"nargs": "?", "default": None} | kind)


def _choices(hint: Any) -> tuple[Sequence[str], bool]:
    """What an option chooses from, and whether module:name is a choice too.

    Example: Literal["clip", "gspo"] | str gives (("clip", "gspo"), True), and int gives ((), False).
    """
    parts = get_args(hint) if str in get_args(hint) else [hint]
    named = next((part for part in parts if get_origin(part) is Literal), None)
    return get_args(named), len(parts) > 1


def _one_of(choices: Sequence[str], *, own: bool) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices and not (own and ":" in text):
            raise ArgumentTypeError(f"{text} is none of {', '.join(choices)}{', module:name' * own}")
        return text

    return read


def _whole(value: Any, flag: Flag) -> Any:
    """A list as the option has it: a tuple, or pairs as a mapping. No option can mean a number below 0, or NaN."""
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int | float) and not 0 <= number < math.inf:
            raise UserError(f"{flag.name} {number} must be {'at least 0' if number < 0 else 'a finite number'}")
    if get_origin(flag.hint) is not Mapping:
        return tuple(value) if isinstance(value, list) else value
    if len(value) % 2:
        raise UserError(f"{flag.name} takes pairs, and {value[-1]} is one alone")
    return dict(zip(value[::2], value[1::2], strict=True))


def _filled(options: type, values: Mapping[str, Any], default: Any) -> Any:
    """The dataclass, or its default, with these values at whatever depth."""
    hints, given = get_type_hints(options), {}
    for each in fields(options):
        if is_dataclass(hints[each.name]):
            inner = _default_of(each) if default is MISSING else getattr(default, each.name)
            given[each.name] = _filled(hints[each.name], values, inner)
        elif each.name in values:
            given[each.name] = values[each.name]
    return options(**given) if default is MISSING else replace(default, **given)


# Flags


def fixed(value: T) -> T:
    """A default that nobody changes on the command line, so it has no flag; tests and code may."""
    return field(default=value, metadata={FIXED: True})


def flags_of(options: type, defaults: object = MISSING) -> Iterator[Flag]:
    """Every flag of a dataclass, including those of nested dataclasses."""
    group = " ".join((inspect.getdoc(options) or "").split("\n\n")[0].split())
    hints, texts = get_type_hints(options), _field_texts(options)
    marked = get_type_hints(options, include_extras=True)
    for each in fields(options):
        if FIXED in each.metadata:
            continue
        default = _default_of(each) if defaults is MISSING else getattr(defaults, each.name)
        hint: Any = hints[each.name]
        if is_dataclass(hint):
            yield from flags_of(hint, default)  # type: ignore[arg-type]
        else:
            marks = getattr(marked[each.name], "__metadata__", ())
            name = ("--[no-]" if _without_none(hint) is bool else "--") + each.name.replace("_", "-")
            yield Flag(
                each.name.upper() if POSITIONAL in marks else name, _metavar(hint), texts.get(each.name, ""),
                _default_text(default), group, each.name, hint, TRUST in marks,
            )  # fmt: skip


def _default_of(each: Field[Any]) -> Any:
    return each.default_factory() if each.default_factory is not MISSING else each.default


def _default_text(default: object) -> str:
    if default is MISSING:
        return "required"
    if isinstance(default, bool):
        return "on" if default else "off"
    if default is None or default in ("", (), {}):
        return ""
    return shown(default)


def _without_none(hint: Any) -> Any:
    """Example: int for int | None."""
    parts = get_args(hint)
    return next(part for part in parts if part is not NoneType) if NoneType in parts else hint


def _metavar(hint: Any) -> str:
    """Example: INT for int | None, sparse|dense for Literal["sparse", "dense"], INT ... for tuple[int, ...]."""
    hint = _without_none(hint)
    choices, own = _choices(hint)
    if choices:
        return "|".join([*choices, "MODULE:NAME"][: len(choices) + own])
    if get_origin(hint) in (tuple, Mapping):
        return f"{_metavar(get_args(hint)[0])} ..."
    return "" if hint is bool else str(hint.__name__).upper()


def _field_texts(options: type) -> dict[str, str]:
    """The docstring under each field, including fields of parent classes."""
    texts = {}
    for parent in reversed([c for c in options.__mro__ if is_dataclass(c)]):
        try:
            source = inspect.getsource(parent)
        except OSError:  # it has none, as in `python -c`
            continue
        [tree] = ast.parse(textwrap.dedent(source)).body
        for before, after in pairwise(tree.body if isinstance(tree, ast.ClassDef) else []):
            match before, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts


# Help


def help_text(
    options: Any, description: str, top: Sequence[str] = (), more: Sequence[str] = (), subcommand: str = ""
) -> str:
    """The help with the flags of `top` in that order, or with all flags by group if `top` is empty."""
    module = sys.modules["__main__"].__spec__  # of python -m
    script = f"python -m {module.name.removesuffix('.__main__')}" if module else Path(sys.argv[0]).name
    if not isinstance(options, type):
        texts = [f"  {name:10}{inspect.getdoc(option)}" for name, option in by_name(options).items()]
        subcommands = "\n".join(["Subcommands, each with a --help of its own:", *texts])
        return "\n\n".join([f"usage: {script} SUBCOMMAND [options]", description.strip(), subcommands])
    flags = list(flags_of(options))
    parts = [f"usage: {script}{subcommand} [options]", description.strip()]
    if top:
        by_field = {flag.field: flag for flag in flags}
        chosen = [by_field[name.replace("-", "_")] for name in top]
        parts.append(_section("The options people change first (defaults in brackets)", chosen))
        parts.append(f"--help-all shows the other {len(flags) - len(top)}.")
    else:
        groups = dict.fromkeys(flag.group for flag in flags)
        parts += [_section(group.rstrip("."), [flag for flag in flags if flag.group == group]) for group in groups]
    return "\n\n".join([part for part in parts if part] + [*more])


def _section(heading: str, flags: Iterable[Flag]) -> str:
    width, indent, lines = min(shutil.get_terminal_size((100, 24)).columns, 100), " " * 30, [f"{heading}:"]
    for flag in flags:
        left = f"  {flag.name} {flag.value}".rstrip()
        text = f"{flag.help.removesuffix('.')} ({flag.default})" if flag.default else flag.help
        right = textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)
        lines.append(f"{left}\n{right}" if len(left) > 28 else f"{left:30}{right[30:]}")
    return "\n".join(lines)


# What users bring


def imported(option: str, name: str) -> Any:
    """The class or function that module:name names, its module in the current folder or installed."""
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute):
        raise UserError(f"{option} {name} is no name of a class or a function; give it as module:name")
    if "" not in sys.path:  # find modules in the current folder, as `python -m` does
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a user's module may raise anything; it is reported, not hidden
        raise UserError(f"{option} {name} can't be loaded: {type(error).__name__}: {first_line(error)}") from error


def imported_class(option: str, name: str, kind: type[T], called: str) -> type[T]:
    """The subclass of `kind`, which users know as `called`, that module:name names."""
    found = imported(option, name)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise UserError(f"{option} {name} must be a subclass of {called}")
    return found


# Command lines: flags and a YAML file become a dataclass of options, help comes at once, each error is one line.

CONFIG = "--config FILE reads any of the options from a YAML file, a line `max_steps: 100` each; flags win over it."
# Errors of a full or unwritable disk, from Python itself and through safetensors.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EEXIST, errno.ENOTDIR)


def run_script(
    main: Callable[..., Any],
    description: str | None = None,
    *,
    top: Sequence[str] = (),
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    resumes: bool = True,
    begun: Callable[[Any], Path] | None = None,
) -> None:
    """Parse the command line into the dataclass that main takes, or into one of a union, and call main with it.

    `top` are the flags that --help shows; `presets` are the options that each `--preset NAME` stands for; `resumes`:
    the same command takes up what was stopped; `begun` says where a run keeps the options that it was begun with, which
    stand for those that are left out. A UserError, or a place that can't be written to, ends the script with
    one line and status 1.
    """
    options, arguments, presets = next(iter(get_type_hints(main).values())), sys.argv[1:], presets or {}
    try:
        with sigterm_unwinds():
            if {"-h", "--help", "--help-all"} & set(arguments):
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `--help-all | head` ends quietly
                print(help_for(options, arguments, description or "", top, presets))
            else:
                given = expanded(arguments, presets)
                main(resumed(options, given, begun) if begun else parse(options, given))
    except UserError as error:
        sys.exit(f"error: {one_line(without_passwords(str(error)))}")
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        where = error.filename or "the disk"
        why = os.strerror(error.errno)
        sys.exit(f"error: {one_line(str(where))}: {why}; mend that, then re-run the same command to resume")
    except KeyboardInterrupt as stop:
        sys.stderr.write("stopped; re-run the same command to resume\n" if resumes else "stopped\n")
        sys.exit(128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT))


class Terminated(KeyboardInterrupt):
    """SIGTERM, as `docker stop` sends it."""


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM stop the script as Ctrl-C does, at once, clearing away what is half-written; a second one kills it.

    One of several trainers may wait for the others in C, where Python handles no signal: it ends at once.
    """

    def handle(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    if world() > 1:
        yield
        return
    before = signal.signal(signal.SIGTERM, handle)
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        # The same under another identity: asyncio would replace it, and end its tasks only once they wait again.
        signal.signal(signal.SIGINT, partial(signal.default_int_handler))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)


def resumed(options: type, arguments: Sequence[str], begun: Callable[[Any], Path]) -> Any:
    """The options given; of a run that is there already, its own in front of them, as those of a --config stand."""
    given = parse(options, arguments)
    path = begun(given)
    if not path.exists():
        others = sorted(each.parent.name for each in path.parent.parent.glob(f"*/{path.name}"))
        if others and is_first():  # so that a mistyped folder is noticed, as nothing is resumed
            say(f"{path.parent} is new; also there: {', '.join(others[:9])}")
        return given
    if getattr(given, "overwrite", False):
        return given
    before = by_field(read_manifest(path, "put it back, or give another folder"))
    now = by_field({"options": plain(given)})
    # The folder may have been moved, and is overwritten only if that is said again.
    known = {flag.field for flag in flags_of(options) if now[flag.field] != str(path.parent)} - {"overwrite"}
    whole = parse(options, [*as_arguments({name: before[name] for name in before if name in known}), *arguments])
    taken = {name: value for name, value in by_field({"options": plain(whole)}).items() if value != now[name]}
    trusts = {flag.field for flag in flags_of(options) if flag.trust}
    if foreign := {name: value for name, value in taken.items() if name in trusts and leads_away(value)}:
        raise UserError(
            f"{path} names what runs code or gets requests and keys, so it isn't taken from there: if you trust it, "
            f"add {shlex.join(as_arguments(foreign))}"
        )
    if taken and is_first():
        say(f"not given, so taken from {path}: {shlex.join(as_arguments(taken))}")
    return whole


def leads_away(value: Any) -> bool:
    """Whether a value names a class, as module:Class, or an address of another machine; a folder's name does neither.

    Example: ["http://localhost:8100", "http://gpu1:8100"] does, for its second.
    """
    return any(":" in text and not is_here(text) for text in ([value] if isinstance(value, str) else value))


def by_field(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The options in a manifest. Example: {"options": {"inner": {"k": 3}}} gives {"k": 3}."""
    return {name.rpartition(".")[2]: value for name, value in flat(manifest).items() if name.startswith("options.")}


def help_for(
    options: Any, arguments: Sequence[str], description: str, top: Sequence[str], presets: Mapping[str, object]
) -> str:
    """The help of the script, or of the subcommand that is named."""
    if not isinstance(options, type) and arguments[0] in by_name(options):
        return help_text(by_name(options)[arguments[0]], "", subcommand=f" {arguments[0]}")
    method = f"--preset {'|'.join(presets)} sets what that method is known for; other flags win over it."
    return help_text(
        options, description, () if "--help-all" in arguments else top, [CONFIG, *[method][: len(presets)]]
    )


def expanded(arguments: Sequence[str], presets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """`--config FILE` and `--preset NAME` replaced by their options, at the front, as later flags win.

    Example: a file with `max_steps: 40` and `pool: true` turns ["--config", "f.yaml", "--no-pool"] into
    ["--max-steps", "40", "--pool", "--no-pool"].
    """
    parser = Parser("--help-all")
    parser.add_argument("--config", type=Path, default=None)
    found, rest = parser.parse_known_args(arguments)
    if found.config:
        rest = [*as_arguments(read_config(found.config)), *rest]
    if not presets:
        return rest
    parser.add_argument("--preset", type=_one_of([*presets], own=False), default=None)
    found, rest = parser.parse_known_args(rest)  # a file may name one
    return [*as_arguments(presets[found.preset]), *rest] if found.preset else rest


def read_config(path: Path) -> dict[str, Any]:
    import yaml

    try:
        options = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"--config {path} can't be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise UserError(f"{path} must hold lines like `max_steps: 100`")
    return options


def as_arguments(options: Mapping[str, Any]) -> Iterator[str]:
    """Example: {"pool": False, "weights": [1, 2]} gives --no-pool --weights 1 2; what is null is left out."""
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, dict):
            raise UserError(f"{name} in the config file is a group of options; write them at the top level")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        elif value is not None:
            yield f"--{flag}"
            yield from map(str, value if isinstance(value, list | tuple) else [value])
