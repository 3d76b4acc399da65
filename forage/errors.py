"""One kind of error for what the user can mend, and the one place where it becomes a line and an exit status."""

from __future__ import annotations


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
