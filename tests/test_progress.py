"""Progress in a terminal moves; in a log it is whole lines, few of them, and none for what is soon done."""

import io
import os
import pty
import subprocess
import sys
import termios

from forage import progress
from forage.progress import counting
from tests import ROOT


def test_a_log_gets_whole_lines(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress, "LOG_EVERY", 0.0)
    with counting("pages", 3, "page") as bar:
        for _ in range(3):
            bar.update()
    assert "\r" not in log.getvalue()
    lines = log.getvalue().splitlines()
    assert lines[-1].startswith("pages: 3 of 3, ")
    assert all(line.startswith("pages: ") for line in lines)


def test_what_is_soon_done_leaves_no_line(monkeypatch):
    monkeypatch.setattr(progress, "LOG_EVERY", 600.0)
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with counting("pages", 2, "page") as bar:
        bar.update(2)
    with counting("pages", 0, "page"):
        pass
    assert log.getvalue() == ""


def test_a_terminal_gets_a_bar():
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    code = "from forage.progress import counting\nwith counting('pages', 2, 'page', 1) as bar: bar.update()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=slave) as process:
        os.close(slave)
        process.wait()
    seen = os.read(master, 65536).decode()
    os.close(master)
    assert "\rpages: 100%" in seen
    assert max(map(len, seen.replace("\n", "\r").split("\r"))) <= 80
    assert "2/2" in seen
