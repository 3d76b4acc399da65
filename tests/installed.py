"""Packages that one test needs, installed for it alone."""

import subprocess
import sys

import pytest


def installed(folder, *packages):
    """The folder with these packages; where they can't be installed, the test is left out."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(folder), *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"left out: {packages[-1]} can't be installed here ({done.stderr.strip().splitlines()[-1]})")
    return folder
