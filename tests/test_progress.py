"""Progress in a terminal moves; in a log it is whole lines, few of them, and none for what is soon done."""

import os
import pty
import subprocess
import sys
import termios

from forage import progress
from forage.progress import Counting, duration
from tests import ROOT


def test_a_log_gets_whole_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOG_EVERY", 0.0)
    with Counting("pages", 1003, 1000) as bar:
        for _ in range(3):
            bar.update()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "pages: done 1,003 of 1,003; left 0 s"
    assert all(line.startswith("pages: done 1,00") for line in lines)


def test_what_is_soon_done_leaves_no_line(capsys):
    with Counting("pages", 2) as bar:
        bar.update(2)
    with Counting("pages", 0):
        pass
    assert capsys.readouterr().out == ""


def test_two_units_of_time_are_told():
    assert [duration(s) for s in (0.2, 59.4, 61, 7300, 200_000)] == ["0 s", "59 s", "1 min 1 s", "2 h 1 min", "2 d 7 h"]


EPISODES = """
from forage.progress import Counting
from forage.rollout.view import RolloutView
from tests.factories import EPISODE
with Counting("pages", 2, 1) as bar:
    bar.update()
with RolloutView("episodes of 0", 1) as view:
    print("a library's line")
    view.played(EPISODE)
print("done")
"""


def test_a_terminal_gets_tables_that_end_as_they_should():
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 80))
    process = subprocess.Popen(
        [sys.executable, "-c", EPISODES], cwd=ROOT, stdout=theirs, stderr=theirs,
        env=os.environ | {"TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        said += part
    assert process.wait() == 0, said.decode()
    text = said.decode()
    assert all(part in text for part in ("2 of 2", "a library's line", "1 of 1", "done\r\n"))
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 2  # each puts the cursor back
