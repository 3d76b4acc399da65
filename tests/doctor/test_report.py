"""The report's two forms, and the command as users run it."""

import json
import os
import platform
import shutil
import subprocess
import sys
import venv
from importlib import metadata

import pytest

from forage.doctor import __main__ as doctor
from forage.doctor.lines import Line
from forage.doctor.report import as_json, as_text, works
from forage.errors import UserError
from tests import ROOT
from tests.misbehaving_vllm import MisbehavingVLLM

LONG = "a reason that goes on for a while, so that it has to be broken into lines that fit a terminal of 80 columns"
REPORT = {
    "Some": [Line("ok", "one"), Line("choice", "two", LONG, "python two.py")],
    "Others": [Line("missing", "three", "nobody has it", "pip install three")],
}
TEXT = """\
Some
  ok      one
  choice  two
          a reason that goes on for a while, so that it has to be broken into
          lines that fit a terminal of 80 columns
          > python two.py

Others
  missing three
          nobody has it
          > pip install three

Nothing is missing that the basic path needs. Next: make demo"""
COMMAND = ["-m", "forage.doctor"]
# The same, with a minute for a hub that is there: the machine may be slow.
PATIENT = """
import runpy
from forage.doctor import services
services.ask_hub.__defaults__ = (60.0,)
runpy.run_module("forage.doctor", run_name="__main__", alter_sys=True)
"""


def test_text():
    assert as_text(REPORT) == TEXT
    assert as_text(REPORT, colour=True).replace("\033[33mmissing \033[0m", "missing ").count("\033") == 4


def test_only_what_is_needed_fails():
    assert works(REPORT)
    failing = REPORT | {"More": [Line("missing", "four", needed=True), Line("choice", "five", needed=True)]}
    assert not works(failing)
    assert as_text(failing).endswith("Needed, and not in order (1):\nfour")


def test_json_has_what_the_text_has():
    read = json.loads(as_json(REPORT))
    assert read["works"] is True
    assert read["groups"]["Others"] == [
        {
            "state": "missing", "what": "three", "why": "nobody has it", "command": "pip install three",
            "needed": False, "figures": {},
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (UserError("no such file; name one"), "problem", "no such file; name one"),
        (ImportError("cannot import name 'x'\nmore"), "problem", "can't be told: cannot import name 'x'"),
        (OSError("libfoo.so: cannot open"), "problem", "can't be told: libfoo.so: cannot open"),
    ],
)
def test_a_part_that_can_not_be_told_fails(error, state, why):
    def look():
        raise error

    [line] = doctor.told("part", look)
    assert (line.state, line.what, line.why, line.fails) == (state, "part", why, True)


def test_other_errors_are_not_hidden():
    with pytest.raises(ZeroDivisionError):
        doctor.told("part", lambda: [Line("ok", str(1 / 0))])


def test_the_folders_that_are_named(tmp_path):
    options = doctor.Options(data=tmp_path / "a", policy=tmp_path / "b", run_dir=tmp_path / "c")
    lines = doctor.named(options, hub=False)
    assert [line.what for line in lines] == [
        f"--data {tmp_path}/a",
        f"--policy {tmp_path}/b",
        f"--run-dir {tmp_path}/c",
    ]
    assert all(line.fails for line in lines)
    assert doctor.named(doctor.Options(), hub=False) == []


# The command


def run(*arguments, python=sys.executable, **environment):
    own = {"OMP_NUM_THREADS": "1", "HF_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": ""}
    variables = os.environ | own | environment
    command = [str(python), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=250, check=False)


@pytest.fixture(scope="module")
def here():
    """The command on this machine, with keys in the environment and a hub that answers."""
    with MisbehavingVLLM() as hub:
        port = hub.url.rpartition(":")[2]
        secrets = dict.fromkeys(("HF_TOKEN", "VLLM_API_KEY", "WANDB_API_KEY", "OPENAI_API_KEY"), "s3cret-key")
        address = f"http://user:s3cret-key@127.0.0.1:{port}/s3cret-key"
        yield run("-c", PATIENT, "--json", HF_ENDPOINT=address, HF_HUB_OFFLINE="", **secrets)


@pytest.fixture(scope="module")
def figures(here):
    """Figures by group, one dictionary for each line."""
    groups = json.loads(here.stdout)["groups"]
    return {name: [line["figures"] for line in lines] for name, lines in groups.items()}


def test_what_it_says_of_this_machine_is_so(here, figures):
    assert here.returncode == (0 if json.loads(here.stdout)["works"] else 1)
    python, *packages = figures["Python and packages"]
    assert python == {"version": platform.python_version(), "executable": sys.executable}
    assert packages[0]["torch"] == metadata.version("torch")
    assert packages[0]["numpy"] == metadata.version("numpy")
    processor, memory = figures["This machine"]
    assert processor["cores"] == os.cpu_count()
    assert (processor["threads"], processor["omp_num_threads"]) == (1, "1")
    assert memory["total"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_it_says_of_the_disks_is_so(figures):
    disks = {row["path"]: row["free"] for row in figures["Disks"]}
    assert {"data", "models", "runs/grpo"} <= disks.keys()
    assert abs(disks["data"] - shutil.disk_usage(ROOT).free) < 2**30  # others write meanwhile


def test_no_secret_is_printed(here, figures):
    assert "s3cret" not in here.stdout + here.stderr
    assert figures["Services"][0] == {"reachable": True, "HF_TOKEN": True, "VLLM_API_KEY": True, "WANDB_API_KEY": True}


def test_a_folder_that_does_not_open_ends_with_status_1(tmp_path):
    """As text: no colours in a pipe, and nothing but commands is wider than 80 columns."""
    done = run(*COMMAND, "--policy", tmp_path)
    assert done.returncode == 1
    assert "problem --policy" in done.stdout
    assert "has no model.json" in " ".join(done.stdout.split())
    assert "\033" not in done.stdout
    wide = [line for line in done.stdout.splitlines() if len(line) > 80 and not line.startswith("          > ")]
    assert [line for line in wide if str(tmp_path) not in line] == []


@pytest.mark.parametrize(
    "broken", ["raise OSError('libcudart.so.12: cannot open shared object file')", "from torch import _C"]
)
def test_with_a_torch_that_can_not_be_imported(tmp_path, broken):
    """The rest is told nevertheless."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(broken)
    done = run(*COMMAND, "--json", "--data", tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    [torch] = report["groups"]["torch and GPUs"]
    assert (torch["state"], torch["needed"], torch["what"]) == ("problem", True, "torch")
    assert "What the defaults will be" not in report["groups"]
    assert [line["what"].split()[0] for line in report["groups"]["Disks"]] == ["data", "run", "models", "temporary"]
    assert [line["state"] for line in report["groups"]["Folders"]] == ["problem"]


def test_in_a_python_without_any_package(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    done = run(*COMMAND, "--json", python=bare)
    assert (done.returncode, done.stderr) == (1, "")
    [_, packages, *_] = json.loads(done.stdout)["groups"]["Python and packages"]
    assert packages["command"] == "make setup && source .venv/bin/activate"
    assert {"torch", "tyro", "numpy"} <= set(packages["figures"]["missing"])
    told = run(*COMMAND, "--data", "data", python=bare)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == ("error: --data data can't be read without the package tyro, only --json; run `make setup`\n")


def test_its_help_needs_nothing_heavy():
    done = run("-X", "importtime", *COMMAND, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: python -m forage.doctor [options]\n")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"torch", "transformers", "numpy", "httpx", "chromadb"}
