"""One kind of error for what the user can mend, and the one place where it becomes a line and an exit status."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import Any

import tyro


class UserError(Exception):
    """Bad input, a missing model, a dead server: the message says what, where and the way out, in one line."""


def first_line(error: BaseException) -> str:
    """What a library's error says, cut to the one line that a user can read."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def check_at_least_one(options: object, *names: str) -> None:
    """Refuse the first of these fields that is under 1, by the name of its option."""
    _check_at_least(1, options, *names)


def check_at_least_zero(options: object, *names: str) -> None:
    """Refuse the first of these fields that is under 0, by the name of its option."""
    _check_at_least(0, options, *names)


def _check_at_least(least: int, options: object, *names: str) -> None:
    for name in names:
        if getattr(options, name) < least:
            raise UserError(f"--{name.replace('_', '-')} {getattr(options, name)} must be at least {least}")


# What a full or unwritable disk says, by Python itself and through safetensors.
NO_ROOM = {
    errno.ENOSPC: "no space is left; make room",
    errno.EDQUOT: "the quota is used up; make room",
    errno.EROFS: "it is read-only; mount it writable",
    errno.EACCES: "this user has no right to it; change its owner",
}


def run_script(script: Callable[..., Any], description: str | None = None) -> None:
    """Parse the command line, and the file that --config names, into the script's options, and run it.

    What the user can mend ends it with one line and status 1.
    """
    from core.config_file import with_config

    config = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    try:
        tyro.cli(script, args=with_config(sys.argv[1:]), description=description, config=config)
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        where = error.filename or "the disk"
        sys.exit(f"error: {where}: {NO_ROOM[error.errno]}, and run the same command again to go on from here")
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command again to go on from here")
