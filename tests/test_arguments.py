"""A misspelt flag, a value of a wrong type and a missing option are found before tyro, in one line."""

import pytest

from forage.arguments import check_arguments, check_required, nearest
from forage.errors import UserError

KINDS = {
    "--output-dir": "PATH", "--max-steps": "INT", "--rate": "FLOAT", "--weights": "FLOAT ...", "--[no-]pool": "",
    "--mode": "hybrid|dense", "--resolve": "MAPPING", "--either": "auto|INT",
}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        "",
        "--max-steps 3 --rate -1e-4 --mode dense --output-dir a",
        "--max_steps=3 --rate=.5",
        "--weights 1 2 -.5 --pool",
        "--weights --no-pool",
        "--pool True --max-steps None",
        "--resolve a.test 127.0.0.1 b.test 127.0.0.2",
        "--either auto --either 3",
    ],
)
def test_what_tyro_takes_passes(given):
    check_arguments(given.split(), KINDS, "--help-all")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("--ouput-dir a", "--ouput-dir is no option; did you mean --output-dir? --help-all shows the options"),
        ("--max_step=3", "--max-step is no option; did you mean --max-steps? --help-all shows the options"),
        ("--zzzzzz", "--zzzzzz is no option; --help-all shows the options"),
        ("-o a", "-o is no option; --help-all shows the options"),
        ("--no-mode", "--no-mode is no option; did you mean --mode? --help-all shows the options"),
        ("a.csv --pool", "a.csv belongs to no option; --help-all shows the options"),
        ("--max-steps 3 4", "4 belongs to no option; --help-all shows the options"),
        ("--pool maybe", "maybe belongs to no option; --help-all shows the options"),
        ("--max-steps 1.5", "--max-steps 1.5: give a whole number"),
        ("--max-steps --pool", "--max-steps needs a value: a whole number"),
        ("--output-dir", "--output-dir needs a value: text"),
        ("--rate=fast", "--rate fast: give a number"),
        ("--weights 1,2", "--weights 1,2: give a number, or several with blanks between them"),
        ("--mode both", "--mode both: give hybrid, dense"),
        ("--either 1.5", "--either 1.5: give a whole number or auto"),
    ],
)
def test_each_mistake_is_one_line(given, error):
    with pytest.raises(UserError) as raised:
        check_arguments(given.split(), KINDS, "--help-all")
    assert str(raised.value) == error


def test_a_positional_argument_takes_what_belongs_to_no_option():
    check_arguments(["--max-steps", "3", "why does a chain fail"], {"QUERY": "", "--max-steps": "INT"}, "--help")


def test_what_is_required_is_named_with_its_meaning():
    required = {"--lora-model": "Adapter folder."}
    check_required(["--lora_model=a"], required, "--help-all")
    with pytest.raises(UserError, match=r"^--lora-model is missing \(Adapter folder\); --help-all shows the options$"):
        check_required(["--other", "a"], required, "--help-all")


def test_a_beginning_comes_before_what_only_looks_alike():
    names = {"--nora": "", "--lora-model": "", "--lora-rank": "", "--lora-alpha": ""}
    assert nearest("--lora", names) == ["--lora-model", "--lora-rank"]
    assert nearest("--mora", names) == ["--nora"]
    assert nearest("--zzzzzz", names) == []
