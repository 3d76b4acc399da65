"""docs/recipes/publish.md: its commands on a tiny run, and the card as the hub's own library reads it."""

import re
import shutil

import pytest
from huggingface_hub import ModelCard

from tests.recipes.run import calls_of, run
from tests.refusals import refused
from tests.tiny_training import tiny_options, train

QUICK = ("--engine", "local", "--systems", "plain_rag", "single", "--eval-questions", "0")


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """The reader's folder after the page's commands."""
    folder = tmp_path_factory.mktemp("publish")
    (folder / "models").mkdir()
    (folder / "data").symlink_to(tiny / "data")
    (folder / "models/warm").symlink_to(tiny / "policy")
    train(tiny_options(tiny, folder / "runs/a", max_steps=2))
    evaluate, merge = calls_of("publish.md")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run(evaluate, *QUICK)
        run(merge, "--dtype", "float32")
    return folder


@pytest.fixture
def card(folder):
    return ModelCard.load(folder / "models/my_searcher/README.md")


def test_the_hub_and_people_read_the_card(card, folder):
    data = card.data
    assert (data.base_model, data.library_name, data.pipeline_tag) == ("base", "transformers", "text-generation")
    assert "This model is `trained/plain_rag`, `trained/single`." in card.text
    assert "2 questions of data/eval.jsonl" in card.text
    assert "| rewards | 1 even + 1 low |" in card.text
    assert str(folder) not in card.content


def of_training(path):
    path.write_text(path.read_text().replace('"split": "eval"', '"split": "train"'))


def merge_again(folder, monkeypatch, *more):
    monkeypatch.chdir(folder)
    run(calls_of("publish.md")[1], "--output-path", "models/again", "--no-prove", *more)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: path.write_text(re.sub('"policy .*": "', r"\g<0>0", path.read_text())), "evaluate this adapter"),
        (lambda path: path.unlink(), r"is no evaluation \(FileNotFoundError.*; give --evaluation the --output-dir"),
        (lambda path: path.write_text("["), r"is no evaluation \(JSONDecodeError"),
        (lambda path: of_training(path.with_name("eval.json")), "measured training questions"),
    ],
)  # fmt: skip
def test_scores_of_something_else_are_refused(folder, tmp_path, monkeypatch, change, says):
    shutil.copytree(folder / "runs/eval_a", tmp_path / "eval")
    change(tmp_path / "eval/evaluation.json")
    with refused(says):
        merge_again(folder, monkeypatch, "--evaluation", str(tmp_path / "eval"))
    assert not (folder / "models/again").exists()
