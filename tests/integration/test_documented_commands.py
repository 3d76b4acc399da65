"""The README's commands as they stand, in an empty folder, on a tiny model: each stage finds what the last one left."""

import re
import shlex
import sys

import pytest

from forage.agent.options import read_agent
from forage.data.records import read_questions
from forage.policy.adapters import versions
from forage.runs.stats import read_stats
from tests import ROOT
from tests.here import run_here

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What makes a command small; it stays the command that is documented, with all that it names.
FEWER = {
    "sft_train.py": "--max-steps 2 --num-demonstrations 8",
    "grpo_train.py": "--max-steps 1 --batch-size 2 --num-rollouts 2 --eval-questions 2 --engine local",
    "evaluate.py": "--eval-questions 2 --engine local",
    "train_ppo.py": "--max-steps 1 --eval-questions 2 --max-new-tokens 4 --report-to none",
}


def commands(page, part):
    """The first block of a page that contains `part`."""
    block = next(block for block in BLOCK.findall((ROOT / page).read_text()) if part in block)
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


def laptop_commands():
    """The block of the quick start that a laptop runs."""
    return commands("README.md", "sft_train.py")


def run(folder, command, check=True):
    script, *arguments = command[1:]
    done = run_here([sys.executable, ROOT / script, *arguments, *FEWER.get(script, "").split()], folder)
    assert not check or done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_base):
    """After the quick start's commands; the tiny model stands in for the one that create_lora_model.py unpacks."""
    folder, said = tmp_path_factory.mktemp("documented"), {}
    for command in laptop_commands():
        more = ["--base-model", str(tiny_base)] if "create_lora_model.py" in command else []
        said[command[1]] = run(folder, [*command, *more]).stdout
    folder.joinpath("said").write_text(said["grpo_train.py"])
    return folder


def test_each_stage_of_the_quick_start_finds_what_the_last_one_left(folder):
    scripts = [command[1] for command in laptop_commands()]
    assert scripts == [
        "data_prep.py", "create_lora_model.py", "sft_train.py", "grpo_train.py", "evaluate.py", "merge_lora.py",
    ]  # fmt: skip
    assert len(read_questions(folder / "data" / "train.jsonl")) > 200
    assert read_agent(folder / "models" / "warm").task == "Answer the medical question from a library"
    assert read_agent(folder / "runs" / "a").task == read_agent(folder / "models" / "warm").task
    assert versions(folder / "runs" / "a") == [0, 1]
    assert len(read_stats(folder / "runs" / "a")) == 1
    assert (folder / "models" / "merged" / "config.json").is_file()
    said = (folder / "said").read_text()
    assert "no warm start" not in said  # grpo_train.py took models/warm without being told
    assert "no episode keeps to the protocol" in said  # the tiny model writes noise, and the user is told so


def test_query_rewriting_starts_on_what_data_prep_made(folder, tiny_base):
    said = run(folder, ["python", "train_ppo.py", "--base-model", str(tiny_base)]).stdout
    assert re.search(r"^trained +recall@5 \d\.\d{3} \(", said, re.MULTILINE), said
    assert (folder / "models" / "query_augmentation_ppo" / "config.json").is_file()
