"""A YAML file's options stand where --config stood, and the command line goes before."""

import subprocess
import sys
from pathlib import Path

import pytest

from core.config_file import with_config
from core.errors import UserError

ROOT = Path(__file__).resolve().parent.parent


def given(tmp_path, text, *arguments):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return with_config([*arguments, "--config", str(path)])


def test_the_example(tmp_path):
    text = "max_steps: 40\npool: true\nweights: [1, 0.5]\nrun-dir: runs/x\n"
    assert given(tmp_path, text) == ["--max-steps", "40", "--pool", "--weights", "1", "0.5", "--run-dir", "runs/x"]
    assert given(tmp_path, "max_steps: 40\npool: true", "--no-pool") == ["--max-steps", "40", "--no-pool"]
    assert given(tmp_path, "max_steps: 40\npool: false", "--max_steps=3") == ["--no-pool", "--max_steps=3"]
    assert with_config(["--seed", "1"]) == ["--seed", "1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("just words", "must hold lines like"),
        ("a: [1", "is no YAML"),
        ("loss:\n  beta: 1\n", "put them at the top level"),
        ("1: 2\n", "must hold lines like"),
    ],
)
def test_bad_files_are_told(tmp_path, text, says):
    with pytest.raises(UserError, match=says):
        given(tmp_path, text)
    with pytest.raises(UserError, match=r"can't be read \(No such file"):
        with_config(["--config", str(tmp_path / "none.yaml")])
    with pytest.raises(UserError, match="needs the path"):
        with_config(["--config"])


def test_a_script_takes_it_and_names_an_unknown_option(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"policy: {tmp_path}/none\nmax_steps: 2\n")
    run = [sys.executable, "grpo_train.py", "--config", str(path)]
    told = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert (told.returncode, told.stderr) == (
        1, f"error: {tmp_path}/none has no model.json; make a policy with create_lora_model.py "
        f"--output-dir {tmp_path}/none\n",
    )  # fmt: skip
    path.write_text("max_stepz: 2\n")
    told = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 2
    assert "max-stepz" in told.stderr + told.stdout
