"""Config file: a YAML file of a script's options, under the names they have on its command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from core.errors import UserError


def with_config(arguments: Sequence[str]) -> list[str]:
    """Arguments with those of `--config FILE` put in its place; what the command line says itself goes before.

    Example: a file with `max_steps: 40` and `pool: true` makes of ["--config", "f.yaml", "--no-pool"]
    ["--max-steps", "40", "--no-pool"].
    """
    if "--config" not in arguments:
        return list(arguments)
    place = arguments.index("--config")
    if place + 1 == len(arguments):
        raise UserError("--config needs the path of a YAML file")
    rest = [*arguments[:place], *arguments[place + 2 :]]
    said = {argument.split("=")[0].replace("_", "-").replace("--no-", "--", 1) for argument in rest}
    return [*_from_file(Path(arguments[place + 1]), said), *rest]


def _from_file(path: Path, said: set[str]) -> Iterator[str]:
    try:
        options = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"--config {path} can't be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise UserError(f"{path} must hold lines like `max_steps: 100`")
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if flag not in said:
            yield from _as_arguments(flag, value)


def _as_arguments(flag: str, value: Any) -> list[str]:
    """Example: ("--pool", False) gives --no-pool; ("--weights", [1, 2]) gives --weights 1 2."""
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, dict):
        raise UserError(f"{flag.removeprefix('--')} in the config file holds options itself; put them at the top level")
    return [flag, *map(str, value)] if isinstance(value, list) else [flag, str(value)]
