"""The pages keep what they promise: snippets run, commands parse, files and targets they name are there."""

import contextlib
import functools
import importlib
import io
import re
import subprocess
import sys
import typing
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import pytest

from document_store import StoreOptions
from forage.agent.combination import reward_matrix
from forage.agent.episode import Episode
from forage.arguments import flags_of
from forage.data.records import Document, Question
from forage.errors import UserError
from forage.policy import memory
from tests import ROOT
from tests.pages import FENCE, command_lines, commands_of, fenced, options_of, parsed, python_call

README = ROOT / "README.md"
RESULTS = ROOT / "RESULTS.md"
DEMO = ROOT / "scripts" / "demo.sh"
# What errors.md shows is mistyped; tests/scripts/test_bad_inputs.py runs it.
PAGES = [README, RESULTS, *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "errors.md"})]
LINK = re.compile(r"\]\(([^)\s]+)\)")
# A path of the repository in backticks; those with a placeholder, such as episodes/<step>, are not meant to be there.
PATH = re.compile(r"`((?:forage|tests|scripts|bench|docs|sample_data)/[\w./-]+)`")
# Commands in the text whose flags are another program's, or a benchmark's own, which parsing has seen.
OTHERS = re.compile(r"docker|pip|python -m|scripts/")
# That a user runs, with flags of their own.
MODULES = (
    "forage.policy.memory", "forage.policy.served_base", "forage.runs.report",
    "forage.testtime.train_scorer", "forage.testtime.self_evolve", "forage.testtime.selection",
    "forage.planning.library", "forage.planning.teaching",
)  # fmt: skip
# vLLM's and trackio's.
OTHERS_FLAGS = {
    "--enable-auto-tool-choice", "--enable-lora", "--enable-sleep-mode", "--hf-overrides", "--max-lora-rank",
    "--project", "--requeue", "--time", "--tool-call-parser", "--tool-strict-level",
}  # fmt: skip
# What the reader brings.
YOURS = {
    "medquad.jsonl.gz", "qa.jsonl", "my_model", "scifact", "docs.jsonl", "topics.tsv", "qrels.txt", "runs/lockstep",
    "runs/ahead", "notes", "nfcorpus",
}  # fmt: skip
# Options that name what a command writes, and what it reads.
WRITES = ("output_dir", "output_path", "content_dir", "cache_dir", "out")
READS = (
    "data", "policy", "beside", "lora_model", "documents", "demonstrations", "templates", "episodes",
    "collection", "corpus", "queries", "qrels", "evaluation", "questions_file", "lockstep", "ahead", "scorer",
    "parts",
)  # fmt: skip
ALWAYS_READ = ("data", "policy")  # though it be their default
RUN_DIR_IS_MADE_BY = ("grpo_train", "bench.search_gain", "grpo_rollout", "train_ppo")


def can_be_imported(module):
    """False of a benchmark whose peers are not installed (requirements-bench.txt), and of the doctor."""
    if module == "forage.doctor.__main__":
        return False
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return not module.startswith("bench.")
    return True


def values_of(options):
    """(field, value, default) of every option, nested ones included."""
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            yield from values_of(value)
        else:
            yield field.name, value, field.default


def paths_in(value):
    """Example: ("warm=models/warm", "runs/a") gives models/warm and runs/a."""
    values = value if isinstance(value, tuple) else (value,)
    named = [str(one) for one in values if one not in (None, "") and "://" not in str(one)]
    return [Path(one.partition("=")[2] or one) for one in named]


def files_of(module, options):
    """(paths it reads, paths it writes)."""
    reads, writes = [], []
    for name, value, default in values_of(options):
        makes_run = name == "run_dir" and module in RUN_DIR_IS_MADE_BY
        if name in WRITES or makes_run or (name == "store" and type(options).__name__ == "Build"):
            writes += paths_in(value)
        elif name in READS or name == "run_dir":
            reads += paths_in(value) if value != default or name in ALWAYS_READ else []
        elif name == "dataset_name" and Path(value).suffix:
            reads += paths_in(value)
    return reads, writes


def is_there(path, made):
    return path.is_absolute() or (ROOT / path).exists() or str(path) in YOURS or {path, *path.parents} & made


# Commands


def test_command_lines_are_read_as_a_shell_would():
    text = (
        "for seed in 1 2; do\n  A=1 python x.py \\\n --seed $seed  # slow\ndone\nmake demo && python -m bench.y > out"
    )
    assert command_lines(text) == [
        ["python", "x.py", "--seed", "1"], ["python", "x.py", "--seed", "2"], ["make", "demo"],
        ["python", "-m", "bench.y"],
    ]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses_and_names_files_that_are_there(page):
    made = set().union(*map(made_by, {DEMO, README, RESULTS} - {page}))
    for command in commands_of(page):
        call = python_call(command)
        if call is None or not can_be_imported(call[0]):
            continue
        try:
            options = parsed(*call)
        except UserError as error:
            pytest.fail(f"{' '.join(command)}: {error}")
        reads, writes = files_of(call[0], options)
        missing = [str(path) for path in reads if not is_there(path, made)]
        assert not missing or command[0] == "docker", f"{' '.join(command)}: nothing has made {', '.join(missing)}"
        made |= set(writes)


@functools.cache
def made_by(page):
    """What a page's commands write, or demo.sh's: runs/demo/data, runs/demo/warm and so on."""
    commands = command_lines(page.read_text().replace('"$PY"', "python")) if page == DEMO else commands_of(page)
    calls = [call for command in commands if (call := python_call(command)) and can_be_imported(call[0])]
    return frozenset(path for module, arguments in calls for path in files_of(module, parsed(module, arguments))[1])


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


def test_readme_is_short():
    assert len(README.read_text().splitlines()) <= 200


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
    drawn = subprocess.run(
        [sys.executable, ROOT / "scripts/draw_imports.py"], capture_output=True, text=True, check=True
    )
    page = (ROOT / "docs" / "layout.md").read_text()
    assert drawn.stdout.strip() in page, "run python scripts/draw_imports.py docs/layout.md"


def test_every_function_beside_an_equation_is_there():
    rows = re.findall(r"^\|.*\$.*\| ([^|$]+) \|$", (ROOT / "docs" / "training.md").read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    files = ["agent/combination.py", "grpo/losses.py", "policy/logprobs.py"]
    text = "".join((ROOT / "forage" / file).read_text() for file in files)
    assert len(rows) > 9
    assert not [name for name in named if f"def {name}(" not in text]


def test_every_guarantee_names_a_test_that_exists():
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(\w+))?`", (ROOT / "docs" / "guarantees.md").read_text())
    assert len(named) > 30
    for path, test in named:
        text = (ROOT / "tests" / path).read_text()
        assert f"def {test or 'test_'}" in text, f"{path}::{test}"


def test_every_benchmark_is_on_its_page():
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    modules = {path.stem for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text()}
    assert not [module for module in modules if f"`python -m bench.{module}" not in page]


def test_the_table_of_memory_is_the_plans():
    page = (ROOT / "docs" / "training.md").read_text()
    table = page[page.index("| card |") :].split("\n\n")[0].splitlines()
    for card, *row in ([cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]):
        gib = float(card.removesuffix(" GiB"))
        found = memory.plan(memory.shape_of(memory.Options.base), gib, memory.Work())
        taken = (f"{size / memory.GIB:.1f} GiB" for size in (found.trainer.bytes, found.server.bytes))
        assert row == [found.arrangement, found.server.serve, *taken, f"`{found.trainer.flags}`"]


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


@pytest.fixture(scope="module")
def readme_snippet(run_snippet):
    """The README's snippet that has this word, run."""

    def run(word):
        [number] = [number for number, text in enumerate(fenced(README, "python")) if word in text]
        return run_snippet(README, number)

    return run


@pytest.mark.parametrize(
    ("page", "number"),
    [(page, number) for page in PAGES for number in range(len(fenced(page, "python")))],
    ids=lambda value: value.name if isinstance(value, Path) else str(value),
)
def test_python_snippets_run(page, number, run_snippet):
    run_snippet(page, number)


def test_the_store_snippet_finds_what_it_should(readme_snippet):
    assert readme_snippet("why does my toe hurt").printed.splitlines()[-1].startswith("1 Gout Uric acid")


def test_the_reward_snippet_rewards(readme_snippet):
    functions = readme_snippet("get_reward_functions").namespace["get_reward_functions"](None)
    silent = Episode("q/0", "q", (), (), (), (), (), "", "turns", "base")
    brief = Episode("q/1", "q", (), (), (), (), (), "Rest.", "answer", "base")
    rewards_NR = reward_matrix(functions, [silent, brief], [Question("q", "What helps?", "Rest.")] * 2)
    assert rewards_NR.tolist() == [[0, 0], [0, 1]]


def test_the_retriever_snippet_keeps_one_chunk_of_each_document(tmp_path, run_snippet):
    one_per_document = run_snippet(ROOT / "docs/recipes/retriever.md", 1).namespace["OnePerDocument"]
    texts = [f"Gout hurts the toe. {other} " * 40 for other in ("It is red.", "It is hot.", "It swells.")]
    options = StoreOptions(embedder="none", chunk_tokens=40, chunk_overlap=0)
    documents = [Document(f"d{n}", "Gout", text) for n, text in enumerate(texts)]
    one_per_document.build(tmp_path / "store", documents, options)
    store = one_per_document.open(tmp_path / "store")
    [plain] = super(one_per_document, store).search(["toe is red"], 3, "sparse")
    [hits] = store.search(["toe is red"], 3, "sparse")
    assert len({hit.doc_id for hit in plain}) == 1
    assert hits[0] == plain[0]
    assert len({hit.doc_id for hit in hits}) == len(hits)
