"""Doctor: what is on this machine, what the scripts will pick and why, what is missing and the command that mends it.

    python -m forage.doctor
    python -m forage.doctor --data data --policy models/warm --run-dir runs/a

Each line is ok, a choice (what is picked where nothing is said), missing, or a problem. Ends with status 1 if something
is missing that the basic path needs, or if a folder that is named doesn't open. It changes nothing, asks nothing of the
network but whether the model hub answers, and prints no key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forage.cli import run_script
from forage.doctor.defaults import Picked, default_lines, model_lines, pick, places
from forage.doctor.folders import data_lines, policy_lines, run_lines
from forage.doctor.hardware import disk_lines, machine_lines, torch_lines
from forage.doctor.lines import Line, Report, refused
from forage.doctor.packages import python_and_packages
from forage.doctor.report import as_json, as_text, works
from forage.doctor.services import ask_hub, docker_lines, hub_lines, server_lines
from forage.errors import UserError, first_line


@dataclass(frozen=True)
class Options:
    """What to look at beside the machine."""

    data: Path | None = None
    """Data folder: is its store readable?"""
    policy: Path | None = None
    """Policy folder: is its base here?"""
    run_dir: Path | None = None
    """Run folder: can it be resumed?"""
    json: bool = False
    """Print JSON, for programs."""


def main(options: Options) -> None:
    report = examine(options)
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(as_json(report) if options.json else as_text(report, colour=colour))
    sys.exit(0 if works(report) else 1)


def examine(options: Options) -> Report:
    answer = ask_hub()  # while torch is imported
    report: Report = {
        "Python and packages": told("packages", python_and_packages),
        "torch and GPUs": torch_lines(),
    }
    torch_works = not any(line.fails for line in report["torch and GPUs"])
    report["This machine"] = machine_lines(torch_works=torch_works)
    hub = answer()
    report["Services"] = hub_lines(hub)
    picked: Picked | None = None
    if torch_works:
        report["What the defaults will be"] = told("defaults", lambda: default_lines(hub))
        report["Default models"] = told("models", lambda: model_lines(hub))
        report["Services"] += told("vLLM server", lambda: server_lines(options.policy))
        if not any(line.fails for line in report["What the defaults will be"]):
            picked = pick(hub)
    report["Services"] += docker_lines(gpu=picked is not None and picked.gpu)
    report["Disks"] = told("disks", lambda: disk_lines(places(picked)))
    folders = named(options, hub.reachable)
    if folders:
        report["Folders"] = folders
    return report


def named(options: Options, hub: bool) -> list[Line]:
    """Lines of the folders that the options name."""
    lines: list[Line] = []
    if data := options.data:
        lines += told(f"--data {data}", lambda: data_lines(data))
    if policy := options.policy:
        lines += told(f"--policy {policy}", lambda: policy_lines(policy, hub=hub))
    if run_dir := options.run_dir:
        lines += told(f"--run-dir {run_dir}", lambda: run_lines(run_dir, hub=hub))
    return lines


def told(what: str, look: Callable[[], list[Line]]) -> list[Line]:
    """The lines, or one that says why there are none: a package that is missing or broken, or what a script refuses."""
    try:
        return look()
    except UserError as error:
        return [refused(what, error)]
    except (ImportError, OSError) as error:  # a shared library that is missing is an OSError
        return [Line("problem", what, f"can't be told: {first_line(error)}", "make setup", needed=True)]


def without_tyro(arguments: list[str]) -> None:
    """Where even the package that reads options is missing."""
    if unknown := [argument for argument in arguments if argument != "--json"]:
        sys.exit(f"error: {' '.join(unknown)} can't be read without the package tyro, only --json; run `make setup`")
    main(Options(json=bool(arguments)))


if __name__ == "__main__":
    try:
        import tyro  # noqa: F401
    except ImportError:
        without_tyro(sys.argv[1:])
    else:
        run_script(main, __doc__)
