"""Command lines: flags and a YAML file become a dataclass of options, help comes at once, each error is one line."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from forage.arguments import by_name, flags_of, help_text, parse
from forage.errors import UserError
from forage.machine import is_here
from forage.manifest import flat, plain, read_manifest
from forage.processes import is_first
from forage.text import one_line, say, without_passwords

CONFIG = "--config FILE reads any of the options from a YAML file, a line `max_steps: 100` each; flags win over it."
# Errors of a full or unwritable disk, from Python itself and through safetensors.
UNWRITABLE = {
    errno.ENOSPC: "no space left on it; free some",
    errno.EDQUOT: "its quota is used up; free some space",
    errno.EROFS: "it is mounted read-only; mount it writable",
    errno.EACCES: "this user may not write there; change its owner",
    errno.EEXIST: "a file is where a folder is to be; move it away",
    errno.ENOTDIR: "a file is where a folder is to be; move it away",
}


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
    try:
        with sigterm_unwinds():
            run(main, sys.argv[1:], description or "", top, presets or {}, begun)
    except UserError as error:
        sys.exit(f"error: {one_line(without_passwords(str(error)))}")
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        where = error.filename or "the disk"
        sys.exit(f"error: {one_line(str(where))}: {UNWRITABLE[error.errno]}, then re-run the same command to resume")
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

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
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


def run(
    main: Callable[..., Any], arguments: Sequence[str], description: str = "", top: Sequence[str] = (),
    presets: Mapping[str, Mapping[str, Any]] | None = None, begun: Callable[[Any], Path] | None = None,
) -> None:  # fmt: skip
    options = next(iter(get_type_hints(main).values()))
    if {"-h", "--help", "--help-all"} & set(arguments):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `--help-all | head` ends quietly
        print(help_for(options, arguments, description, top, presets or {}))
    else:
        given = expanded(arguments, presets or {})
        main(resumed(options, given, begun) if begun else parse(options, given))


def resumed(options: type, arguments: Sequence[str], begun: Callable[[Any], Path]) -> Any:
    """The options given; of a run that is there already, its own in front of them, as those of a --config stand."""
    given = parse(options, arguments)
    path = begun(given)
    if not path.exists():
        others = sorted(each.parent.name for each in path.parent.parent.glob(f"*/{path.name}"))
        if others and is_first():  # so that a mistyped folder is noticed, as nothing is resumed
            say(f"{path.parent} is begun now; beside it are {', '.join(others[:9])}")
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
    file, rest = taken("--config", arguments)
    if file:
        rest = [*as_arguments(read_config(Path(file))), *rest]
    name, rest = taken("--preset", rest) if presets else ("", rest)
    if name and name not in presets:
        raise UserError(f"--preset {name} is unknown; give one of {', '.join(presets)}")
    return [*as_arguments(presets[name]), *rest] if name else rest


def taken(flag: str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The value of the last such flag, or "", and the other arguments."""
    value, rest, given = "", list[str](), iter(arguments)
    for argument in given:
        name, equals, text = argument.partition("=")
        if name != flag:
            rest.append(argument)
        elif not (value := text if equals else next(given, "")):
            raise UserError(f"{flag} needs a value")
    return value, rest


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
