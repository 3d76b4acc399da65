"""How a script runs: the YAML file's options stand before the command line's, and SIGTERM stops it as Ctrl-C does."""

import asyncio
import os
import re
import signal
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from forage.arguments import expanded, flags_of, resumed, run_script
from forage.errors import UserError
from forage.grpo.options import TrainOptions
from forage.manifest import plain, write_manifest
from forage.store.options import StoreAddress
from tests.pages import options_of
from tests.refusals import refused


def given(tmp_path, text, *arguments):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return expanded([*arguments, "--config", str(path)], {})


def test_the_example(tmp_path):
    text = "max_steps: 40\npool: true\ncold: false\nweights: [1, 0.5]\nrun-dir: runs/x\nk: null\n"
    told = ["--max-steps", "40", "--pool", "--no-cold", "--weights", "1", "0.5", "--run-dir", "runs/x"]
    assert given(tmp_path, text) == told
    assert given(tmp_path, text, "--max-steps=3", "--no-pool") == [*told, "--max-steps=3", "--no-pool"]
    assert expanded(["--seed", "1"], {}) == ["--seed", "1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("just words", "must hold lines like"),
        ("loss:\n  beta: 1\n", "write them at the top level"),
    ],
)
def test_bad_files_are_told(tmp_path, text, says):
    with refused(says):
        given(tmp_path, text)


def test_an_error_shows_no_password(monkeypatch):
    def main(options: StoreAddress) -> None:
        raise UserError("--urls http://me:secret@gpu1:99999: no port")

    monkeypatch.setattr(sys, "argv", ["a.py"])
    with pytest.raises(SystemExit, match="error: --urls http://gpu1:99999: no port"):
        run_script(main)


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    tags: tuple[str, ...] = ("a",)


@dataclass(frozen=True)
class Begun:
    run_dir: Path = Path("run")
    inner: Inner = field(default_factory=Inner)
    steps: int = 8
    cold: bool = True
    task: str = ""
    overwrite: bool = False


def test_what_is_left_out_is_what_the_run_was_begun_with(tmp_path, capsys):
    tmp_path /= "runs/a"  # so that no other test's run lies beside it

    def run(*arguments):
        return resumed(Begun, ["--run-dir", str(tmp_path), *arguments], lambda options: options.run_dir / "run.json")

    new = run("--steps", "4", "--no-cold", "--rate", "1e-5", "--task", "a b", "--tags", "b", "c", "--overwrite")
    assert new == Begun(tmp_path, Inner(1e-5, ("b", "c")), 4, False, "a b", True)
    tmp_path.mkdir(parents=True)
    write_manifest(tmp_path / "run.json", {"options": plain(replace(new, run_dir=Path("before/it/was/moved")))})
    assert capsys.readouterr().out == ""
    assert run("--steps", "8", "--task", "c") == replace(new, steps=8, task="c", overwrite=False)
    taken = "--rate 1e-05 --tags b c --no-cold"
    assert capsys.readouterr().out == f"not given, so taken from {tmp_path / 'run.json'}: {taken}\n"
    assert run("--overwrite") == Begun(tmp_path, overwrite=True)
    assert capsys.readouterr().out == ""
    write_manifest(tmp_path / "a" / "run.json", {})
    run("--run-dir", str(tmp_path / "aa"))
    assert capsys.readouterr().out == f"{tmp_path / 'aa'} is new; also there: a\n"


TOLD = [
    ("retriever", "data.hidden:Hidden"), ("store", "http://evil.example"), ("store", "http://127.0.0.1.evil.example"),
    ("urls", ["http://localhost:1", "http://evil.example"]), ("urls", ["evil.example:80"]), ("urls", ["http://[:1"]),
    ("weights", ["mine:brevity=1"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), TOLD)
def test_a_folder_runs_no_code_and_sends_nothing_elsewhere(tmp_path, name, value):
    """A class to import or another machine's address is taken from the command line alone."""
    write_manifest(tmp_path / "run.json", {"options": {"inner": {name: value}, "max_steps": 7}})
    shown = f"--{name} {value if isinstance(value, str) else ' '.join(value)}"

    def run(*arguments):
        given = ["--run-dir", str(tmp_path), *arguments]
        return resumed(TrainOptions, given, lambda options: options.run_dir / "run.json")

    with refused("if you trust it, add ") as error:
        run()
    assert shown in str(error.value).replace("'", "")
    assert run(*shown.split()).max_steps == 7
    default = {"urls": "http://127.0.0.1:8100"}.get(name, "")
    assert run(f"--{name}", default).max_steps == 7  # an own choice, which is the default


@pytest.mark.parametrize("value", ["http://127.0.0.2:1", "http://[::1]:1", "http://localhost:1", "a/folder"])
def test_a_folder_may_name_folders_and_this_machine(tmp_path, value, capsys):
    write_manifest(tmp_path / "run.json", {"options": {"store": value, "task": "\x1b[2J"}})
    given = ["--run-dir", str(tmp_path)]
    taken = resumed(TrainOptions, given, lambda options: options.run_dir / "run.json")
    assert (taken.rollout.address.store, taken.rollout.search.task) == (value, "\x1b[2J")
    assert "\\x1b[2J" in capsys.readouterr().out


def test_every_option_that_names_a_class_or_an_address_is_marked():
    """By their help, as a new one would be written."""
    for options in map(
        options_of, ("grpo_train", "evaluate", "sft_train", "train_ppo", "forage.extras.testtime.self_evolve")
    ):
        for flag in flags_of(options):
            assert flag.trust == bool(re.search("module:(Class|name)|http://|[Aa]ddress", flag.help)), flag.name


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


def test_ctrl_c_stops_what_runs_in_an_event_loop_at_once(monkeypatch, capsys):
    """Rather than where it waits next, which may take a minute."""
    went_on = []

    async def sample():
        os.kill(os.getpid(), signal.SIGINT)
        went_on.append("a pass")

    def main(options: StoreAddress) -> None:
        asyncio.run(sample())

    monkeypatch.setattr(sys, "argv", ["script.py"])
    with pytest.raises(SystemExit) as stopped:
        run_script(main)
    assert (stopped.value.code, went_on) == (130, [])
    assert capsys.readouterr().err == "stopped; re-run the same command to resume\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
