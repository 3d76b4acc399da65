"""The heartbeat, by a file whose age is known."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from forage import heartbeat
from forage.heartbeat import beat, silent_for


def test_silence_is_the_age_of_the_last_beat(monkeypatch, tmp_path):
    monkeypatch.setenv("HEARTBEAT", str(tmp_path / "beat"))
    assert silent_for() == float("inf")
    now = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(
            heartbeat, "time", SimpleNamespace(monotonic=lambda: now + 100, monotonic_ns=lambda: int(now * 1e9))
        )
        beat()
        assert silent_for() == pytest.approx(100, abs=0.001)
    os.utime(tmp_path / "beat", (now - 100,) * 2)
    command = [sys.executable, "-m", "forage.heartbeat"]
    assert subprocess.run(command).returncode == 0
    assert subprocess.run(command, env=os.environ | {"HEARTBEAT_SECONDS": "90"}).returncode == 1


def test_a_beat_from_before_the_machine_started_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("HEARTBEAT", str(tmp_path / "beat"))
    (tmp_path / "beat").touch()  # its time is the date, far above the uptime
    assert silent_for() == float("inf")
