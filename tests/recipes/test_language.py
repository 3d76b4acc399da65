"""docs/recipes/language.md: its rows become data, searched in their language, and its task opens the prompts."""

import pytest

from document_store import DocumentStore
from forage.agent.episode import read_episodes
from forage.agent.options import read_agent
from forage.data.records import read_questions
from tests.pages import fenced
from tests.recipes.run import RECIPES, calls_of, run

pytestmark = pytest.mark.usefixtures("no_plots")


def without_hub(call):
    """The page's embedder is one of the hub's: here, words alone are searched."""
    name, arguments = call
    assert "intfloat/multilingual-e5-small" in arguments
    return name, ["none" if word == "intfloat/multilingual-e5-small" else word for word in arguments]


def test_the_commands(here):
    [rows] = fenced(RECIPES / "language.md", "json")
    (here / "qa.jsonl").write_text(rows)
    prepare, train = calls_of("language.md")
    run(without_hub(prepare))
    store = DocumentStore.open("data/de/store")
    assert store.options.language == "german"
    found = store.search(["GICHTANFALL", "Gicht", "jucken Nasen"], 1, "sparse")
    assert [[hit.text.partition(",")[0] for hit in hits] for hits in found] == [
        ["Bei Gichtanfällen helfen Ruhe und Kühlung."], [], ["Bei Heuschnupfen läuft die Nase"],
    ]  # fmt: skip
    held_out, rest = read_questions(here / "data/de/eval.jsonl"), read_questions(here / "data/de/train.jsonl")
    assert len(held_out) + len(rest) == 3
    assert all(question.relevant_chunk_ids for question in held_out + rest)
    run(train, "--mode", "sparse", "--max-steps", "1", "--num-demonstrations", "2",
        "--eval-share", "0.5", "--max-turn-tokens", "400")  # fmt: skip
    assert read_agent(here / "models/de").task == "Beantworte die Frage mit Hilfe der Bibliothek"
    told = [episode.transcript for episode in read_episodes(here / "models/de/demonstrations.jsonl")]
    assert told
    assert all("system\nBeantworte die Frage mit Hilfe der Bibliothek: search it first" in text for text in told)
