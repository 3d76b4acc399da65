"""UserError, for problems the user can fix, and checks of options; forage.arguments prints it as one line."""

from __future__ import annotations


class UserError(Exception):
    """Bad input, a missing model, a dead server. The message is one line: what failed, where, and how to fix it."""


def first_line(error: BaseException) -> str:
    """The first line of a library's error message, at most 200 characters of it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def flag(name: str) -> str:
    """The option of a field. Example: --max-steps for max_steps."""
    return f"--{name.replace('_', '-')}"


def check_at_least_one(options: object, *names: str) -> None:
    """Refuse options if any of these fields is less than 1; what is less than 0 is refused when it is read."""
    for name in names:
        if getattr(options, name) < 1:
            raise UserError(f"{flag(name)} {getattr(options, name)} must be at least 1")
