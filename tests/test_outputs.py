"""No script writes over what it reads, and none removes a folder that it did not make."""

import os
import shutil
import sys

import pytest

from forage.files import check_replaceable
from tests import ROOT
from tests.here import run_here
from tests.refusals import refused
from tests.tiny_rewriter import make_tiny as make_tiny_rewriter


@pytest.fixture(scope="module")
def inputs(tiny, tmp_path_factory):
    """Everything that scripts read, and a folder of the user's own, all of which must be the same afterwards."""
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    make_tiny_rewriter(folder / "data")
    (folder / "data" / "rewriter").mkdir()
    shutil.copytree(folder / "data" / "data", folder / "data" / "rewriter", dirs_exist_ok=True)
    shutil.move(folder / "data" / "model", folder / "lm")
    (folder / "lm" / ".query_rewriter").touch()  # as if train_ppo.py had made it
    (folder / "documents.jsonl").write_text('{"id": "d", "title": "t", "text": "words"}\n')
    (folder / "stored").mkdir()
    shutil.copy(folder / "documents.jsonl", folder / "stored" / "chunks.jsonl")
    (folder / "beir" / "qrels").mkdir(parents=True)
    (folder / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    for name in ("corpus", "queries"):
        (folder / "beir" / f"{name}.jsonl").write_text('{"_id": "d", "text": "words", "title": ""}\n')
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.tex").write_text("years of work")
    (folder / "mine" / "config.json").write_text('{"architectures": ["Mine"], "hidden_size": 8}')
    os.symlink(folder / "policy", folder / "link")
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


SFT = ["sft_train.py", "--data", "data", "--policy", "policy", "--overwrite", "--output-dir"]
CREATE = ["create_lora_model.py", "--base-model", "base", "--no-quantize", "--overwrite", "--output-dir"]
MERGE = [
    "merge_lora.py", "--lora-model", "policy", "--base-model", "base", "--no-prove", "--overwrite", "--output-path",
]  # fmt: skip
GRPO = ["grpo_train.py", "--data", "data", "--policy", "policy", "--engine", "local", "--mode", "sparse", "--run-dir"]
ROLLOUT = ["grpo_rollout.py", *GRPO[1:]]
PPO = ["train_ppo.py", "--data", "data/rewriter", "--base-model", "lm"]
EVALUATE = ["evaluate.py", "--data", "data", "--policy", "policy", "--engine", "local", "--output-dir"]
LIBRARY = ["-m", "forage.extras.planning.library", "runs", "--data", "data", "--out"]
ATTACKS = [
    # the output is an input, by its name or by a link
    ([*SFT, "policy"], "--output-dir policy is --policy, which would be written over"),
    ([*CREATE, "base"], "has no model.json"),
    ([*MERGE, "base"], "is the base or adapter"),
    ([*GRPO, "link"], "is --policy"),
    ([*ROLLOUT, "policy"], "is --policy"),
    (["nano_grpo.py", "--data", "data", "--policy", "policy", "--output-dir", "policy"], "is --policy"),
    ([*PPO, "--output-dir", "lm"], "is --base-model"),
    ([*EVALUATE, "policy"], "is --policy policy"),
    (["data_prep.py", "--dataset-name", "data/rewriter", "--output-dir", "data/rewriter"], "is --dataset-name"),
    (["data_prep.py", "--dataset-name", "beir", "--output-dir", "beir"], "is --dataset-name"),
    (["document_store.py", "build", "--documents", "stored/chunks.jsonl", "--store", "stored", "--embedder", "none"],
     "would be written over"),
    ([*LIBRARY, "data/train.jsonl"], "--out data/train.jsonl is --data"),
    # it lies inside of one, or around one
    ([*SFT, "policy/adapters"], "is inside of --policy"),
    ([*SFT, "."], "holds --data"),
    (["data_prep.py", "--dataset-name", "data/rewriter", "--output-dir", "data"], "holds --dataset-name"),
    # it is the user's own
    ([*SFT, "mine"], "--output-dir mine holds thesis.tex, which this script did not write"),
    ([*SFT[:5], "--output-dir", "mine"], "mine/config.json was not written by this script; give another --output-dir"),
    ([*CREATE, "mine"], "was not made by this script (it has no model.json)"),
    ([*MERGE, "mine"], "was not made by merge_lora.py"),
    ([*PPO, "--run-dir", "mine"], "was not written by this script"),
    (["document_store.py", "build", "--documents", "documents.jsonl", "--store", "stored", "--embedder", "none"],
     "stored holds chunks.jsonl, but no store.json, so it is no store"),
    (["-m", "forage.policy.served_base", "policy", "mine"], "mine is there already and no link"),
]  # fmt: skip
PATHS = {"data", "policy", "base", "lm", "link", "mine", "beir", "stored", "documents.jsonl", "."}


@pytest.mark.parametrize(("command", "says"), ATTACKS, ids=[" ".join(command) for command, _ in ATTACKS])
def test_a_script_refuses_what_would_cost_an_input(inputs, command, says):
    before = contents(inputs)
    given = [str(inputs / word) if word.split("/")[0] in PATHS and word != "-m" else word for word in command]
    done = run_here([sys.executable, *given])
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert says in line.replace(f"{inputs}/", "").replace(str(inputs), ".")
    assert contents(inputs) == before


def test_every_script_that_writes_is_attacked():
    attacked = {command[1] if command[0] == "-m" else command[0] for command, _ in ATTACKS}
    assert {path.name for path in ROOT.glob("*.py")} - {"chat.py"} <= attacked  # it writes nothing


# The checks by hand


def test_only_its_own_folder_may_be_replaced(tmp_path):
    check_replaceable("--out", tmp_path / "none", "mark")
    check_replaceable("--out", tmp_path, "mark")  # an empty one
    for name in ("mark", "part-1", ".lock", ".part-1.77.forage"):
        (tmp_path / name).touch()
    check_replaceable("--out", tmp_path, "mark", ["part-*"])
    (tmp_path / ".git").mkdir()
    with refused(r"holds \.git, which"):
        check_replaceable("--out", tmp_path, "mark", ["part-*"])
    with refused("was not made by this script"):
        check_replaceable("--out", tmp_path / "part-1", "mark")
