"""Completion of a script's options by the shell, as docs/operations.md sets it up."""

import subprocess
import sys

import pytest

from tests import ROOT
from tests.here import run_here

SCRIPT = "grpo_train.py"


@pytest.fixture(scope="module")
def written():
    """bash's completion script of grpo_train.py."""
    done = run_here([sys.executable, SCRIPT, "--tyro-print-completion", "bash"])
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_bash_reads_it_without_an_error(written):
    done = subprocess.run(["bash", "-n"], input=written, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("--max-st", ["--max-staleness", "--max-steps"]),
        ("--learning-", ["--learning-rate"]),
        ("--sharding z", ["zero2", "zero3"]),
    ],
)
def test_bash_completes_options_and_their_values(written, tmp_path, typed, offered):
    (tmp_path / "completion.sh").write_text(written)
    words = [SCRIPT, *typed.split()]
    ask = f"""
        source {tmp_path}/completion.sh
        PATH={sys.exec_prefix}/bin:$PATH
        COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; COMP_LINE="{" ".join(words)}"
        $(complete -p {SCRIPT} | grep -o '_tyro[a-z_]*')
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, cwd=ROOT)
    assert sorted(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_one_line_for_each_description(shell):
    """In tyro's own script a second line of a description is offered as an option."""
    done = run_here([sys.executable, SCRIPT, "--tyro-print-completion", shell])
    [spec] = [line for line in done.stdout.splitlines() if line.startswith("COMPLETION_SPEC = ")]
    assert "Older episodes are dropped. (default: 0)" in spec
    assert "\\" not in spec.replace("\\'", "").replace('\\"', "")


@pytest.mark.parametrize("arguments", [[], ["csh"], ["bash", "too", "many"]], ids=str)
def test_an_unknown_shell_is_one_line(arguments):
    done = run_here([sys.executable, SCRIPT, "--tyro-print-completion", *arguments])
    assert done.returncode == 1
    assert done.stderr == ("error: give --tyro-print-completion one of bash, zsh, fish\n")
