"""The ratchet: the project stays as small as it is.

Whoever needs more raises a number here, in the same commit, and says why in its message; whoever needs less lowers it.

Tokens are those that do something: comments, docstrings and layout are free, so that neither denser code nor fewer
words win anything. `python -m tests.test_size` prints the figures of now.
"""

import ast
import io
import tokenize
from collections import Counter

import pytest

from forage.arguments import flags_of
from tests import ROOT
from tests.pages import options_of
from tests.road import make_start, measure, walk

# folder: (tokens of its Python files, modules directly in it). A folder of forage/ holds those inside it.
BUDGETS = {
    "scripts": (9_961, 11),  # those in the root
    "forage": (13_524, 12),  # the modules of forage/ itself
    "forage/agent": (15_624, 9),
    "forage/data": (16_716, 12),
    "forage/engines": (11_334, 5),
    "forage/evaluation": (11_589, 9),
    "forage/extras": (48_075, 9),
    "forage/grpo": (24_495, 13),
    "forage/policy": (10_096, 9),
    "forage/publishing": (4_628, 3),
    "forage/rollout": (7_330, 5),
    "forage/runs": (9_622, 5),
    "forage/sft": (4_518, 3),
    "forage/store": (12_185, 10),
    "bench": (27_543, 14),
    "tests": (227_746, 50),
}
ROAD = {"files": 61, "functions": 580, "lines": 5_330}  # with bf16 units; without them some 70 lines fewer are called
OPTIONS = {"grpo_train": 60}
OTHER_SCRIPTS_OPTIONS = 45
PAGES = 3_074  # lines of README.md, RESULTS.md, CHANGELOG.md and docs/
WAY_OUT = "cut, or raise the budget in tests/test_size.py in the same commit and say why in its message"
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
    tokenize.ENCODING,
}  # fmt: skip


def check(what, found, budget):
    assert found <= budget, f"{what}: {found}, {found - budget} more than its budget of {budget}; {WAY_OUT}"


def tokens(source):
    """Example: 'x = 1  # one' has three."""
    strings = {
        (node.lineno, node.col_offset)
        for parent in ast.walk(ast.parse(source))
        if isinstance(body := getattr(parent, "body", None), list)
        for node in body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type not in LAYOUT and token.start not in strings for token in found)


def folder_of(path):
    """The budget that a file counts for: forage/data/scraping/robots.py for forage/data, forage/text.py for forage."""
    parts = path.relative_to(ROOT).parent.parts
    return "/".join(parts[:2] if parts[:1] == ("forage",) else parts[:1]) or "scripts"


def modules():
    return [
        *ROOT.glob("*.py"),
        *(path for name in ("forage", "bench", "tests") for path in (ROOT / name).rglob("*.py")),
    ]


def count_tokens():
    found = Counter()
    for path in modules():
        found[folder_of(path)] += tokens(path.read_text())
    return found


def count_modules():
    return Counter(path.parent for path in modules() if path.name != "__init__.py")


def test_every_folder_keeps_to_its_budget():
    found = count_tokens()
    assert found.keys() == BUDGETS.keys(), f"folders came or went; give each its budget here: {WAY_OUT}"
    for folder, count in found.items():
        check(f"tokens of {folder}", count, BUDGETS[folder][0])


def test_no_folder_has_more_modules_than_one_sees_at_a_glance():
    for folder, count in count_modules().items():
        check(f"modules in {folder.relative_to(ROOT)}/", count, BUDGETS[folder_of(folder / "x.py")][1])


@pytest.mark.parametrize("script", sorted(path.stem for path in ROOT.glob("*.py")))
def test_no_script_has_more_options_than_one_reads(script):
    count = len({flag.name for options in options_of_each(script) for flag in flags_of(options)})
    check(f"options of {script}.py", count, OPTIONS.get(script, OTHER_SCRIPTS_OPTIONS))


def options_of_each(script):
    """A script with subcommands has a union of options."""
    options = options_of(script)
    return getattr(options, "__args__", (options,))


def test_the_pages_are_no_longer_than_one_reads():
    pages = [ROOT / name for name in ("README.md", "RESULTS.md", "CHANGELOG.md")] + sorted(ROOT.glob("docs/**/*.md"))
    check("lines of documentation", sum(len(page.read_text().splitlines()) for page in pages), PAGES)


@pytest.mark.slow
def test_one_step_stays_short_from_jsonl_to_gradient(tmp_path):
    """`python -m tests.road` prints which files it is made of."""
    make_start(tmp_path)
    road = walk(tmp_path, tmp_path / "run")
    assert {"forage/store/vectors.py", "forage/grpo/losses.py"} <= road.keys()  # it searched, and it learnt
    for what, count in measure(road).items():
        check(f"{what} that a step of grpo_train.py calls", count, ROAD[what])


def test_what_counts_as_a_token():
    source = '"""A page."""\n\n\ndef f(x):  # why\n    """What."""\n    return "a b"\n'
    assert tokens(source) == len(["def", "f", "(", "x", ")", ":", "return", '"a b"'])


if __name__ == "__main__":
    largest = Counter()
    for folder, count in count_modules().items():
        name = folder_of(folder / "x.py")
        largest[name] = max(largest[name], count)
    for name, count in sorted(count_tokens().items()):
        print(f"{name:20} {count:7} tokens {largest[name]:3} modules")
