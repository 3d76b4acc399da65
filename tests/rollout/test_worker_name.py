"""Worker names: one process each, the first free one by default, and the same one after a restart."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from forage.rollout.plans import named_worker
from tests import ROOT
from tests.refusals import refused

HOLD = """
import sys, time
from pathlib import Path
from forage.rollout.plans import named_worker
with named_worker(Path(sys.argv[1])) as name:
    print(name, flush=True)
    time.sleep(1000)
"""


def test_a_name_is_held_by_one_worker(tmp_path):
    with named_worker(tmp_path, "a") as name:
        assert name == "a"
        told = r"worker a is playing in .* already; give this one another --worker, or none"
        with refused(told), named_worker(tmp_path, "a"):
            pass
        with named_worker(tmp_path, "b"):
            pass
    with named_worker(tmp_path, "a"):
        pass


def test_names_are_the_hosts_first_free_one(tmp_path):
    host = socket.gethostname()
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(named_worker(tmp_path)) for _ in range(3))
    assert (first, second, third) == (host, f"{host}-2", f"{host}-3")
    with named_worker(tmp_path) as again:
        assert again == host


@pytest.mark.parametrize("name", ["trainer", "../b"])
def test_other_names_are_refused(tmp_path, name):
    with refused(f"--worker {name} can't be used"), named_worker(tmp_path, name):
        pass


def test_a_killed_workers_name_is_free_for_the_next(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    host = socket.gethostname()
    assert process.stdout.readline().strip() == host
    with named_worker(tmp_path) as beside:
        assert beside == f"{host}-2"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with named_worker(tmp_path) as after:
        assert after == host
