"""The pages keep what they promise: snippets run, commands parse, files and targets they name are there."""

import contextlib
import functools
import importlib
import io
import re
import shlex
import typing
from dataclasses import dataclass
from pathlib import Path

import pytest

from forage.arguments import flags_of
from forage.errors import UserError
from tests import ROOT
from tests.draw_imports import draw
from tests.pages import FENCE, command_lines, commands_of, fenced, options_of, parsed, python_call

README = ROOT / "README.md"
RESULTS = ROOT / "RESULTS.md"
# What errors.md shows is mistyped; tests/scripts/test_bad_inputs.py runs it.
PAGES = [README, RESULTS, *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "errors.md"})]
LINK = re.compile(r"\]\(([^)\s]+)\)")
# A path of the repository in backticks; those with a placeholder, such as episodes/<step>, are not meant to be there.
PATH = re.compile(r"`((?:forage|tests|scripts|bench|docs|sample_data)/[\w./-]+)`")
# Commands in the text whose flags are another program's, or a benchmark's own, which parsing has seen.
OTHERS = re.compile(r"docker|pip|python -m|scripts/")
# That a user runs, with flags of their own.
MODULES = (
    "forage.extras.gateway.replay", "forage.policy.served_base", "forage.runs.report",
    "forage.extras.testtime.train_scorer", "forage.extras.testtime.self_evolve",
    "forage.extras.planning.library", "forage.extras.planning.teaching",
)  # fmt: skip
# vLLM's and trackio's.
OTHERS_FLAGS = {
    "--enable-auto-tool-choice", "--enable-lora", "--enable-sleep-mode", "--logprobs-mode", "--hf-overrides",
    "--max-lora-rank",
    "--project", "--requeue", "--time", "--tool-call-parser", "--tool-strict-level",
}  # fmt: skip


def can_be_imported(module):
    """False of a benchmark whose peers are not installed (requirements/bench.txt), and of the doctor."""
    if module == "forage.extras.doctor.__main__":
        return False
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return not module.startswith("bench.")
    return True


# Commands


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses(page):
    for command in commands_of(page):
        call = python_call(command)
        if call is None or not can_be_imported(call[0]):
            continue
        try:
            parsed(*call)
        except UserError as error:
            pytest.fail(f"{' '.join(command)}: {error}")


def test_the_demo_ends_with_three_commands_that_run():
    told = (ROOT / "scripts" / "demo.sh").read_text().partition("cat <<END\n")[2].partition("END\n")[0]
    commands = command_lines(told.replace("Next:\n", ""))
    assert [words[1:3] for words in commands] == [
        ["chat.py", "--policy"], ["-m", "webbrowser"], ["data_prep.py", "--documents"],
    ]  # fmt: skip
    for command in (commands[0], commands[2]):
        parsed(*python_call(command))


def targets():
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_commands_are_targets_and_scripts_exist(page):
    for command in commands_of(page):
        if command[0] == "make":
            named = [word for word in command[1:] if re.fullmatch(r"[a-z-]+", word)]
            assert set(named) <= targets(), " ".join(command)
        if command[0].startswith("scripts/"):
            assert (ROOT / command[0]).exists(), " ".join(command)


# Words


def flags():
    """Every flag of every script and of MODULES, --no-x of switches among them."""
    found = {"--help", "--help-all", "--config", "--preset"}
    for script in (*(path.stem for path in ROOT.glob("*.py")), *MODULES):
        options = options_of(script)
        for one in typing.get_args(options) or (options,):
            names = [flag.name for flag in flags_of(one)]
            found |= {name.replace("[no-]", kept) for name in names for kept in ("", "no-")}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_in_the_text_exist(page):
    inline = re.findall(r"`[^`]+`", FENCE.sub("", page.read_text()))
    named = {flag for text in inline if not OTHERS.search(text) for flag in re.findall(r"(?<!\S)`?(--[\w-]+)", text)}
    assert not named - flags() - OTHERS_FLAGS


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text()
    links = [link.partition("#")[0] for link in LINK.findall(text) if "://" not in link and not link.startswith("#")]
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    assert not missing, f"{page.name} names {', '.join(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_are_headings(page):
    for link in LINK.findall(page.read_text()):
        place, _, anchor = link.partition("#")
        if anchor and "://" not in link:
            assert anchor in anchors((page.parent / place) if place else page), link


def anchors(page):
    """As GitHub makes them. Example: "## How it's done" is how-its-done."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_drawing_of_imports_is_up_to_date():
    page = (ROOT / "docs" / "layout.md").read_text()
    assert draw() in page, "run python -m tests.draw_imports docs/layout.md"


def test_every_guarantee_names_a_test_that_exists():
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", (ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) > 30
    for path, test in named:
        text = (ROOT / "tests" / path).read_text()
        assert f"def {test or 'test_'}" in text, f"{path}::{test}"


def test_the_table_of_memory_is_that_of_the_cards():
    page = (ROOT / "docs" / "training.md").read_text()
    table = page[page.index("| card |") :].split("\n\n")[0].splitlines()[2:]
    found = [line.replace("`", "").replace(" GB", "").replace("|", " ").split() for line in table]
    rows = (ROOT / "scripts" / "cards.txt").read_text().splitlines()
    assert found == [line.split() for line in rows if not line.startswith("#")]


# Snippets


@dataclass(frozen=True)
class Ran:
    """What a snippet defined and printed."""

    namespace: dict
    printed: str


@pytest.fixture(scope="module")
def run_snippet(tmp_path_factory):
    """Runs a page's snippet in a folder of its own; each once."""

    @functools.cache
    def run(page, number):
        namespace, printed = {}, io.StringIO()
        with contextlib.chdir(tmp_path_factory.mktemp("snippet")), contextlib.redirect_stdout(printed):
            exec(compile(fenced(page, "python")[number], f"{page.name}[{number}]", "exec"), namespace)
        return Ran(namespace, printed.getvalue())

    return run


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES for number in range(len(fenced(page, "python")))],
    ids=lambda value: value.name if isinstance(value, Path) else str(value),
)
def test_python_snippets_run(page, number, run_snippet):
    run_snippet(page, number)


@pytest.mark.parametrize("script", ["data_prep.py", "sft_train.py", "grpo_train.py"])
def test_the_page_on_training_prints_the_flags_of_the_demo(script):
    """But for its folders, its seed, and that it may be run again."""
    page = (ROOT / "docs" / "training.md").read_text().partition("## Learning to search again")[2]
    commands = page.partition("```bash\n")[2].partition("```")[0]

    def flags(text):
        lines = text.replace("\\\n", " ").splitlines()
        [command] = [shlex.split(line.partition(" | ")[0]) for line in lines if f"{script}" in line and "--" in line]
        values = " ".join(command).partition(script)[2].split(" --")[1:]
        own = ("data ", "policy ", "output-dir", "run-dir", "content-dir", "cache-dir", "seed", "overwrite")
        return {value for value in values if not value.startswith(own)}

    demo = (ROOT / "scripts" / "demo.sh").read_text().partition("cat <<END")[0]
    assert flags(commands) == flags(demo)
