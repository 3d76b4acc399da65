"""A YAML file's options stand where --config stood, and the command line goes before."""

import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import tyro

from forage.cli import (
    Flag,
    check_command_line,
    flags_of,
    help_text,
    reflowed,
    refuse_old_names,
    run,
    run_script,
    with_config,
)
from forage.errors import UserError
from forage.sft.options import SFTOptions
from tests.here import run_here


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
        ("a: [1", "is not YAML"),
        ("loss:\n  beta: 1\n", "write them at the top level"),
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
    told = run_here(run)
    assert (told.returncode, told.stderr) == (
        1, f"error: {tmp_path}/none has no model.json; make a policy with create_lora_model.py "
        f"--output-dir {tmp_path}/none\n",
    )  # fmt: skip
    path.write_text("max_stepz: 2\n")
    told = run_here(run)
    assert (told.returncode, told.stderr) == (
        1, "error: --max-stepz is no option; did you mean --max-steps? --help-all shows the options\n",
    )  # fmt: skip


@dataclass(frozen=True)
class Inner:
    """How it is searched."""

    k: int | None = None
    """Passages a search shows."""
    mode: Literal["sparse", "dense"] = "sparse"
    """What ranks."""


@dataclass(frozen=True)
class Options:
    """What is trained."""

    data: Path
    """Folder of
    questions."""
    shuffle: bool = True
    """Draw at random."""
    weights: tuple[float, ...] = (1.0, 0.5)
    """One a reward."""
    inner: Inner = field(default_factory=lambda: Inner(mode="dense"))


@dataclass(frozen=True)
class Drawing:
    """What is drawn."""

    run_dir: tyro.conf.Positional[Path]
    """Run folder."""
    files: tyro.conf.Positional[tuple[Path, ...]] = ()
    """More."""


def test_help_shows_the_first_flags_and_all_flags_by_group():
    assert list(flags_of(Options)) == [
        Flag("--data", "PATH", "Folder of questions.", "required", "What is trained."),
        Flag("--[no-]shuffle", "", "Draw at random.", "on", "What is trained."),
        Flag("--weights", "FLOAT ...", "One a reward.", "1.0 0.5", "What is trained."),
        Flag("--k", "INT", "Passages a search shows.", "", "How it is searched."),
        Flag("--mode", "sparse|dense", "What ranks.", "dense", "How it is searched."),
    ]
    first = help_text(Options, "Trains.", ["mode", "data"])
    assert first.splitlines()[2:7] == [
        "Trains.", "", "The options people change first (defaults in brackets):",
        "  --mode sparse|dense         What ranks (dense)",
        "  --data PATH                 Folder of questions (required)",
    ]  # fmt: skip
    assert "--help-all shows the other 3." in first
    assert "\n  --config FILE               Read any of the options from a YAML file" in first
    assert "How it is searched:\n  --k INT" in help_text(Options, "Trains.", [])


def test_a_paragraph_that_is_too_wide_is_broken_anew_and_a_command_is_not():
    text = "Trains a small\nmodel now.\n\n    python train.py --data data\n\nShort."
    assert reflowed(text, 12) == "Trains a\nsmall model\nnow.\n\n    python train.py --data data\n\nShort."
    assert reflowed(text, 14) == text


def test_a_positional_argument_is_shown_as_one():
    text = help_text(Drawing, "Draws.", [])
    assert "  RUN_DIR " in text
    assert "--run-dir" not in text
    assert "  FILES ... " in text


def test_a_flag_of_an_earlier_version_is_answered_with_its_new_name():
    with pytest.raises(UserError, match="--at-once is now --concurrency"):
        refuse_old_names(["--k", "3", "--at_once=4"], {"--at-once": "--concurrency"})
    refuse_old_names(["--k", "3"], {"--at-once": "--concurrency"})


def test_sigterm_stops_a_script_as_ctrl_c_does(monkeypatch, capsys):
    """What the script holds is let go, and the status is the one a shell gives to a process ended by SIGTERM."""
    before, left = signal.getsignal(signal.SIGTERM), []

    @dataclass
    class Options:
        steps: int = 1

    def main(options: Options) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            left.append(signal.getsignal(signal.SIGTERM))

    monkeypatch.setattr(sys, "argv", ["script.py"])
    main.__annotations__["options"] = Options
    with pytest.raises(SystemExit) as stopped:
        run_script(main)
    assert stopped.value.code == 143
    assert capsys.readouterr().err == "stopped; re-run the same command to resume\n"
    assert left == [signal.SIG_DFL]  # a second one ends it at once
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ([], None),
        (["--gradient-checkpointing"], True),
        (["--gradient_checkpointing", "--max-steps", "3"], True),
        (["--no-gradient-checkpointing", "--max-steps", "3"], False),
        (["--gradient-checkpointing", "False"], False),
    ],
)
def test_an_option_that_may_be_left_to_the_script_is_a_flag_too(arguments, chosen):
    """As error messages advise it: `--gradient-checkpointing`, without a word after it."""
    seen = []

    def main(options: SFTOptions) -> None:
        seen.append(options.memory.gradient_checkpointing)

    run(main, arguments, "", (), {}, {})
    assert seen == [chosen]
    assert "--[no-]gradient-checkpointing" in [flag.name for flag in flags_of(SFTOptions)]


def test_a_file_may_set_it(tmp_path):
    assert given(tmp_path, "gradient_checkpointing: true") == ["--gradient-checkpointing"]


@dataclass(frozen=True)
class Find:
    """Finds."""

    query: tyro.conf.Positional[str]
    """The query."""
    store: Path
    """Folder of the store."""


@dataclass(frozen=True)
class Info:
    """Tells."""

    store: Path = Path("a")
    """Folder of the store."""


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("", "a subcommand is missing; give one of find, info"),
        ("fnd x", "fnd is unknown; give one of find, info"),
        ("find x --stroe a", "--stroe is no option; did you mean --store? find --help shows the options"),
        ("find x", "--store is missing (Folder of the store); find --help shows the options"),
        ("info x", "x belongs to no option; info --help shows the options"),
    ],
)
def test_mistakes_with_a_subcommand_are_one_line(given, error):
    with pytest.raises(UserError) as raised:
        check_command_line(given.split(), Find | Info)
    assert str(raised.value) == error


def test_a_right_subcommand_passes():
    check_command_line("find x --store a".split(), Find | Info)
    check_command_line(["--help"], Find | Info)


def test_a_misspelt_flag_ends_a_script_with_one_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--dta", "d"])

    def main(options: Options) -> None:
        raise AssertionError("started")

    with pytest.raises(SystemExit) as stopped:
        run_script(main, "Trains.", top=["data"])
    assert stopped.value.code == "error: --dta is no option; did you mean --data? --help-all shows the options"
