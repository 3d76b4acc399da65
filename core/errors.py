"""One kind of error for what the user can mend, and the one place where it becomes a line and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tyro


class UserError(Exception):
    """Bad input, a missing model, a dead server: the message says what, where and the way out, in one line."""


def run_script(script: Callable[..., Any], description: str | None = None) -> None:
    """Parse the command line into the script's options and run it; a UserError ends it with one line and status 1."""
    try:
        tyro.cli(script, description=description, config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes))
    except UserError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; run the same command again to go on from here")
