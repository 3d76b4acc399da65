"""A dataclass of options: its flags, its help, the values of a command line, and mistakes, each in one line."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import pytest

from forage.arguments import POSITIONAL, Flag, flags_of, help_text, parse
from forage.errors import UserError
from tests.refusals import refused


@dataclass(frozen=True)
class Inner:
    """How it is searched."""

    k: int | None = None
    """Passages a search shows."""
    mode: Literal["sparse", "dense"] = "sparse"
    """What ranks."""
    title: bool | None = None
    """Search the titles too."""


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
    max_steps: int = 100
    """Updates."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Pairs."""
    inner: Inner = field(default_factory=lambda: Inner(mode="dense"))


@pytest.mark.parametrize("number", ["-1", "-1e-4", "nan", "inf"])
def test_numbers_are_finite_and_not_below_0(number):
    with refused(r"--weights .* must be (at least 0|a finite number)"):
        parse(Options, ["--data", "a", "--weights", "0.5", number])


@dataclass(frozen=True)
class Find:
    """Finds."""

    query: Annotated[str, POSITIONAL]
    """The query."""
    store: Path
    """Folder of the store."""
    files: Annotated[tuple[Path, ...], POSITIONAL] = ()
    """More."""


@dataclass(frozen=True)
class Info:
    """Tells."""

    store: Path = Path("a")
    """Folder of the store."""


DEFAULT = Options(Path("d"))


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ("", {}),
        ("--max-steps 3", {"max_steps": 3}),
        ("--max_steps=3 --max-steps 4", {"max_steps": 4}),
        ("--weights 1 2 .5 1e-4 --no-shuffle", {"weights": (1.0, 2.0, 0.5, 1e-4), "shuffle": False}),
        ("--weights --shuffle", {"weights": ()}),
        ("--hosts a.test 127.0.0.1 b.test 127.0.0.2", {"hosts": {"a.test": "127.0.0.1", "b.test": "127.0.0.2"}}),
        ("--k 3 --title", {"inner": Inner(3, "dense", True)}),
        ("--mode sparse --no-title", {"inner": Inner(None, "sparse", False)}),
    ],
)
def test_values(given, changed):
    assert parse(Options, ["--data", "d", *given.split()]) == replace(DEFAULT, **changed)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("--mx-steps 3", "--mx-steps is no option; did you mean --max-steps? "),
        ("--zzzzzz", "--zzzzzz is no option"),
        ("a.csv --shuffle", "a.csv belongs to no option"),
        ("--max-steps 3 4", "4 belongs to no option"),
        ("--max-steps 1.5", "--max-steps: invalid int value: '1.5'"),
        ("--mode both", "--mode: both is none of sparse, dense"),
        ("--hosts a.test", "--hosts takes pairs, and a.test is one alone"),
    ],
)
def test_each_mistake_is_one_line(given, error):
    with pytest.raises(UserError) as raised:
        parse(Options, ["--data", "d", *given.split()])
    assert str(raised.value).startswith(error)
    assert "pairs" in error or str(raised.value).endswith(" --help-all shows the options")


def test_what_is_required_is_named_with_its_meaning():
    with refused(r"^--data is missing \(Folder of questions\); --help-all shows the options$"):
        parse(Options, ["--k", "3"])


@pytest.mark.parametrize(
    ("given", "found"),
    [("find x --store a", Find("x", Path("a"))), ("find x y z --store a", Find("x", Path("a"), (Path("y"), Path("z")))),
     ("info", Info())],
)  # fmt: skip
def test_a_subcommand(given, found):
    assert parse(Find | Info, given.split()) == found


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("fnd x", "fnd is unknown; give one of find, info"),
        ("find x --stroe a", "--stroe is no option; did you mean --store? find --help shows the options"),
        ("find x", "--store is missing (Folder of the store); find --help shows the options"),
    ],
)
def test_mistakes_with_a_subcommand(given, error):
    with pytest.raises(UserError) as raised:
        parse(Find | Info, given.split())
    assert str(raised.value) == error


def test_help_shows_the_first_flags_and_all_flags_by_group():
    flags = list(flags_of(Options))
    assert flags[0] == Flag(
        "--data", "PATH", "Folder of questions.", "required", "What is trained.", "data", Path, trust=False
    )
    assert [f"{flag.name} {flag.value} ({flag.default})" for flag in flags[1:]] == [
        "--[no-]shuffle  (on)", "--weights FLOAT ... (1.0 0.5)", "--max-steps INT (100)", "--hosts STR ... ()",
        "--k INT ()", "--mode sparse|dense (dense)", "--[no-]title  ()",
    ]  # fmt: skip
    first = help_text(Options, "Trains.", ["mode", "data"], ["More."])
    assert first.splitlines()[2:] == [
        "Trains.", "", "The options people change first (defaults in brackets):",
        "  --mode sparse|dense         What ranks (dense)",
        "  --data PATH                 Folder of questions (required)", "", "--help-all shows the other 6.", "",
        "More.",
    ]  # fmt: skip
    assert "How it is searched:\n  --k INT" in help_text(Options, "Trains.")
    positional = help_text(Find, "", subcommand=" find")
    assert positional.splitlines()[0].endswith(" find [options]")
    assert "  QUERY STR " in positional
    assert "--files" not in positional
    assert "  find      Finds." in help_text(Find | Info, "")
