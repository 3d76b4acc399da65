"""The heartbeat, by a file whose age is known."""

import os
import subprocess
import sys
import time

from forage.heartbeat import beat, silent_for


def test_nothing_is_touched_without_a_path(monkeypatch, tmp_path):
    monkeypatch.delenv("HEARTBEAT", raising=False)
    monkeypatch.chdir(tmp_path)
    beat()
    assert not list(tmp_path.iterdir())


def test_silence_is_the_age_of_the_last_beat(monkeypatch, tmp_path):
    monkeypatch.setenv("HEARTBEAT", str(tmp_path / "beat"))
    assert silent_for() == float("inf")
    beat()
    assert 0 <= silent_for() < 5
    os.utime(tmp_path / "beat", (time.time() - 100,) * 2)
    assert 99 < silent_for() < 105
    command = [sys.executable, "-m", "forage.heartbeat"]
    assert subprocess.run(command).returncode == 0
    assert subprocess.run(command, env=os.environ | {"HEARTBEAT_SECONDS": "90"}).returncode == 1
