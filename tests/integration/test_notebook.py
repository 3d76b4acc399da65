"""The notebook runs from its first cell to its last, in an empty folder, with a shorter warm start."""

import json
import subprocess
import sys

import pytest

from tests import ROOT
from tests.installed import installed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
FEWER = {"--num-demonstrations 60": "--num-demonstrations 12", "--max-steps 16": "--max-steps 3", "count=8": "count=4"}
EXECUTE = """
import nbformat, sys
from nbclient import NotebookClient
notebook = nbformat.read("first_hour.ipynb", as_version=4)
NotebookClient(notebook, timeout=1000, kernel_name="python3").execute()
nbformat.write(notebook, "first_hour.ipynb")
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """What runs a notebook; no requirement of anything else here."""
    return installed(tmp_path_factory.mktemp("site"), "ipykernel==7.4.0", "nbclient==0.11.0")


def test_every_cell_of_the_notebook_runs(packages, model_folder, tmp_path):
    text = (ROOT / "notebooks" / "first_hour.ipynb").read_text()
    for usual, fewer in FEWER.items():
        assert text.count(usual) == 1
        text = text.replace(usual, fewer)
    (tmp_path / "first_hour.ipynb").write_text(text)
    for name in ("sample_data", "data_prep.py", "create_lora_model.py", "sft_train.py", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    env = {"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    env |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # as in tests/conftest.py
    done = subprocess.run([sys.executable, "-c", EXECUTE], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    cells = json.loads((tmp_path / "first_hour.ipynb").read_text())["cells"]
    told = ["".join(part.get("text", "")) for part in cells[-1]["outputs"]]
    assert "".join(told).splitlines()[0].startswith("mrr ")
    assert any("text/html" in part.get("data", {}) for cell in cells for part in cell.get("outputs", ()))
