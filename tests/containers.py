"""A Docker engine of this machine, for tests."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from tests import ROOT


def docker(*arguments, check=True, env=None):
    done = subprocess.run(
        ["docker", *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, env=os.environ | (env or {})
    )
    assert not check or done.returncode == 0, f"docker {' '.join(map(str, arguments))}:\n{done.stdout}\n{done.stderr}"
    return done


def inspected(container, what):
    return docker("inspect", "--format", f"{{{{json {what}}}}}", container).stdout.strip().strip('"')


@contextmanager
def lent_wheels():
    """What pip finds in a folder of this machine, a build finds in wheels/ until its end."""
    found = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True)
    folder = Path(os.environ.get("PIP_FIND_LINKS") or found.stdout.decode().strip() or "wheels")
    wheels, there = ROOT / "wheels", (ROOT / "wheels").exists()
    lent = [] if there else list(folder.glob("torch-*.whl"))
    for wheel in lent:
        wheels.mkdir(exist_ok=True)
        shutil.copy(wheel, wheels)
    yield
    if lent:
        shutil.rmtree(wheels)
