"""A script started by a Python without its packages says so in one line, whichever script it is."""

import os
import signal
import subprocess
import sys
import venv

import pytest

from forage import is_script
from tests import ROOT

SCRIPTS = sorted(path.name for path in ROOT.glob("*.py"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


@pytest.mark.parametrize(
    "command", [*([script] for script in SCRIPTS), ["-m", "forage.runs.report", "runs/a"]], ids=str
)
def test_the_wrong_python_is_told_with_the_way_out(bare, command):
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([bare, *command], cwd=ROOT, env=alone, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"error: {bare} lacks the package numpy; make .venv with `make setup` and run `source .venv/bin/activate` in "
        "each terminal, or call .venv/bin/python\n"
    )


def started_with(folder):
    """A script that imports what is in the folder first."""
    return subprocess.run(
        [sys.executable, "document_store.py", "search"], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_ctrl_c_during_the_imports_is_one_line(tmp_path):
    (tmp_path / "argparse.py").write_text("raise KeyboardInterrupt")
    done = started_with(tmp_path)
    assert done.returncode == -signal.SIGINT  # a shell calls it 130
    assert (done.stdout, done.stderr) == ("", "stopped; re-run the same command to resume\n")


def test_only_our_own_commands_are_stopped(tmp_path):
    """Code that imports the package gets Python's own error, which it may catch."""
    assert is_script([sys.executable, str(ROOT / "data_prep.py"), "--help"])
    assert is_script(["python", "-m", "forage.policy.served_base"])
    assert not is_script(["python", str(tmp_path / "mine.py")])
    assert not is_script(["python", "-m", "pytest", "data_prep.py"])
    assert not is_script(["python", "-c", "import forage"])
    assert not is_script(["python"])
