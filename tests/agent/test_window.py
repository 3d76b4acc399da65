"""Windows: where a passage is shown from, by hand."""

import pytest

from forage.agent.options import AgentSettings, SearchOptions, read_agent, write_agent
from forage.agent.searcher import best_start, searching, seen_share
from forage.data.chunking import Chunk
from forage.data.records import Document, Question
from forage.store.bm25 import Tokenizer
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions

RYE = (
    "Rye is a tall cereal of poor sandy soil, where wheat would starve, drown or freeze in winter. It is sown in fall. "
    "Bread of rye "
    "keeps moist and fresh for weeks, as its starch binds much water. Rust is its worst pest."
)


@pytest.mark.parametrize(
    ("query", "begins"),
    [
        ("when is rye sown", "It is sown"),  # rye is in the title
        ("what pests harm rye", "Rust is"),  # pest and pests are one stem
        ("rye", "Rye is a tall"),
        ("", "Rye is a tall"),
        ("how is barley malted", "Rye is a tall"),
        ("cereal, bread and water", "Bread of rye"),  # two words in one window are worth more than one
    ],
)
def test_a_passage_is_shown_from_where_it_answers(query, begins):
    assert RYE[best_start(RYE, query, "Rye", Tokenizer()) :].startswith(begins)


def test_a_rare_word_counts_more_than_one_that_many_sentences_have():
    text = (
        "Salt binds water. "
        + "Salt and water are mixed again for a good long time until all lumps are gone. " * 3
        + "Soda lifts the salt."
    )
    assert text[best_start(text, "why salt and soda", "", Tokenizer()) :] == "Soda lifts the salt."


def test_new_policies_are_shown_windows_and_old_ones_what_they_learnt_from(tmp_path):
    store = DocumentStore.build(tmp_path / "store", [Document("d", "Rye", RYE)], StoreOptions(embedder="none"))
    write_agent(AgentSettings(mode="sparse"), tmp_path)
    (tmp_path / "agent.json").write_text((tmp_path / "agent.json").read_text().replace(' "window": "start",\n', ""))
    old, new = read_agent(tmp_path), SearchOptions(mode="sparse").settle(tmp_path / "none")
    assert (old.window, new.window) == ("start", "query")
    for settings, text in ((old, RYE), (new, RYE[RYE.index("It is sown") :])):
        [[hit]] = searching(store, settings)(["when is rye sown"])
        assert hit.text == text


def test_how_often_an_answer_is_shown():
    """A window shows 48 of a passage's 100 words, from where the question asks."""
    text = "Rye feeds many. " + "Oats feed horses well. " * 22 + "Rust harms rye; spores spread it in damp air. "
    chunks = {"d#0": Chunk("d", "Cereals", text, 0, len(text), 0, 1)}

    def share(*answers):
        asked = [Question(str(n), "What harms them?", answer, relevant_chunk_ids=("d#0",)) for n, answer in answers]
        return seen_share(asked, chunks, Tokenizer())

    assert share((1, "Rust, by spores in damp air.")) == 1
    assert share((1, "Rust, by spores in damp air."), (2, "Rye feeds many.")) == 0.5
    assert share((1, "Spores; it starves and freezes millions of poor people and beasts.")) == 0
    assert share((1, "")) is share() is None
