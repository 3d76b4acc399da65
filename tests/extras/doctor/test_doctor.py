"""The doctor: what is missing or of another version, and the command as users run it."""

import os
import platform
import re
import subprocess
import sys
import venv

import pytest

from forage.extras.doctor import checks
from forage.extras.doctor.checks import fault, pins
from tests import ROOT


@pytest.mark.parametrize(
    ("installed", "bounds", "fits"),
    [("2.13.0+cpu", ">=2.13,<2.14", True), ("2.14.0", ">=2.13,<2.14", False), ("2.13.1rc1", ">=2.13,<2.14", True),
     ("0.9", ">=0.10", False), ("0.1.2", "==0.1.2", True)],
)  # fmt: skip
def test_versions_are_compared_as_pip_does(monkeypatch, installed, bounds, fits):
    monkeypatch.setattr(checks, "version", lambda name: installed)
    assert fault("it", bounds) == ("" if fits else f"it {installed} ({bounds} was tested)")


# The command


def run(*arguments, python=sys.executable, **environment):
    variables = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": ""} | environment
    command = [str(python), "-m", "forage.extras.doctor", *arguments]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=250, check=False)


def test_on_this_machine():
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Needed\n  ok   Python {platform.python_version()}\n")
    assert len(done.stdout.splitlines()) < 40
    wide = [line for line in done.stdout.splitlines() if len(line) > 80 and not line.startswith("       > ")]
    assert wide == []


def test_in_a_python_without_any_package(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    done = run(python=tmp_path / "bare" / "bin" / "python")
    assert (done.returncode, done.stderr) == (1, "")
    assert "  --   packages that every run needs: no accelerate, no beautifulsoup4," in done.stdout
    assert "> make setup" in done.stdout
    needed, optional = done.stdout.split("\nOptional")
    assert "  no   " not in needed
    assert "  --   " not in optional
    assert len(done.stdout.splitlines()) <= 40


def test_what_only_some_options_need_is_not_needed_by_the_basic_path():
    """Every stage of the demo imports without those packages."""
    assert checks.SOME_OPTIONS.keys() <= pins("requirements.txt").keys()
    code = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(checks.SOME_OPTIONS)}))
import data_prep, document_store, create_lora_model, grpo_train, merge_lora, sft_train
import forage.data.corpus, forage.store.document_store, forage.policy.policy, forage.policy.adapters
import forage.sft.training, forage.grpo.training, forage.grpo.players, forage.rollout.rollout
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, re.sub("(?s).*Traceback", "", done.stderr)) == (0, "")
