"""What ends a script: one line and a status for what the user can mend, a traceback for what is our fault."""

import errno
import sys
from dataclasses import dataclass

import pytest

from forage.arguments import run_script
from forage.errors import UserError, check_at_least_one, first_line
from tests.refusals import refused


@dataclass
class Options:
    """Nothing to choose."""

    name: str = "x"


def ended(monkeypatch, error):
    def script(options: Options) -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["script.py"])
    with pytest.raises(SystemExit) as end:
        run_script(script)
    return end.value.code


def test_what_the_user_can_mend_is_one_line(monkeypatch, capsys):
    assert ended(monkeypatch, UserError("no such thing")) == "error: no such thing"
    full = OSError(errno.ENOSPC, "No space left on device", "runs/a/state")
    assert ended(monkeypatch, full) == (
        "error: runs/a/state: No space left on device; mend that, then re-run the same command to resume"
    )
    assert ended(monkeypatch, OSError(errno.EROFS, "Read-only")).startswith("error: the disk: Read-only file system;")
    assert ended(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "stopped; re-run the same command to resume\n"


@pytest.mark.parametrize("error", [ValueError("a bug"), OSError(errno.EBADF, "a bug")])
def test_what_is_our_fault_is_shown_whole(monkeypatch, error):
    with pytest.raises(type(error), match="a bug"):
        ended(monkeypatch, error)


def test_first_lines_and_bounds():
    assert first_line(ValueError("\none\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
    with refused("--max-steps 0 must be at least 1"):
        check_at_least_one(type("Options", (), {"max_steps": 0})(), "max_steps")
