"""A stage's process: its status is passed on, and a stop is handed on once and waited for."""

import os
import signal
import subprocess
import sys
import time

import pytest

from forage.processes import run_module
from tests import ROOT

STAGE = """
import pathlib, signal, sys, time

status = sys.argv[1]
if status == "wait":
    folder = pathlib.Path(sys.argv[2])
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        (folder / "begun").write_text("")
        time.sleep(250)
    finally:
        time.sleep(0.3)  # clearing away
        (folder / "cleared").write_text("")
elif status == "kill":
    import os
    os.kill(os.getpid(), signal.SIGKILL)
else:
    sys.exit(int(status))
"""
LAUNCHER = """
import subprocess
from dataclasses import dataclass
from pathlib import Path
from forage.cli import run_script
from forage.processes import run_module

@dataclass
class Options:
    folder: str = ""

wait = subprocess.Popen.wait

def marked(process, timeout=None):
    Path(options_folder, "waits").touch()
    return wait(process, timeout)

def main(options: Options) -> None:
    global options_folder
    options_folder, subprocess.Popen.wait = options.folder, marked
    run_module(("stage", "wait", options.folder))

run_script(main)
"""


@pytest.fixture
def stage(tmp_path, monkeypatch):
    (tmp_path / "stage.py").write_text(STAGE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(("word", "status"), [("0", 0), ("1", 1), ("130", 130), ("kill", 128 + signal.SIGKILL)])
def test_its_status_is_passed_on(stage, word, status):
    assert run_module(("stage", word)) == status


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_reaches_it_and_is_waited_for(stage, tmp_path, sent, status):
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", f"import signal; signal.signal(2, signal.default_int_handler)\n{LAUNCHER}",
               "--folder", tmp_path]  # fmt: skip
    launcher = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while not ((tmp_path / "begun").exists() and (tmp_path / "waits").exists()):
        assert launcher.poll() is None
        time.sleep(0.02)
    launcher.send_signal(sent)
    said = launcher.communicate(timeout=200)[1]
    assert launcher.returncode == status
    assert (tmp_path / "cleared").exists()
    assert said.splitlines()[-1] == "stopped; re-run the same command to resume"
