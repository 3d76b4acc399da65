"""A Docker engine of this machine, for tests."""

import os
import shutil
import subprocess
import sys
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


def lend_wheels():
    """What pip finds in a folder of this machine, the build finds in wheels/."""
    found = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True)
    folder = Path(os.environ.get("PIP_FIND_LINKS") or found.stdout.decode().strip() or "wheels")
    for wheel in folder.glob("torch-*.whl"):
        if not (ROOT / "wheels" / wheel.name).exists():
            (ROOT / "wheels").mkdir(exist_ok=True)
            shutil.copy(wheel, ROOT / "wheels")
