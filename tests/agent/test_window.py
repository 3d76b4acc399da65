"""Windows: where a passage is shown from, by hand."""

import pytest

from forage.agent.options import AgentSettings, SearchOptions, read_agent, write_agent
from forage.agent.searcher import best_start, searching
from forage.data.chunking import Chunk
from forage.data.records import Document, Question
from forage.extras.questions.headroom import seen_share
from forage.store.bm25 import Tokenizer
from tests.factories import plain_store

RYE = (
    "Rye is a tall cereal of poor sandy soil, where wheat would starve, drown or freeze in winter. It is sown in fall. "
    "Bread of rye "
    "keeps moist and fresh for weeks, as its starch binds much water. Rust is its worst pest."
)


@pytest.mark.parametrize(
    ("query", "begins"),
    [
        ("when is rye sown", "winter. It is sown in fall."),  # rye is in the title
        ("what pests harm rye", "as its starch binds"),  # pest and pests are one stem; the window ends with the passage
        ("rye", "Rye is a tall"),
        ("", "Rye is a tall"),
        ("how is barley malted", "Rye is a tall"),
        ("cereal, bread and fresh weeks", "Bread of rye keeps moist"),  # more of it in one window is worth more
    ],
)
def test_a_passage_is_shown_from_shortly_before_what_was_asked_for(query, begins):
    """Room for .72 * 16 - 1, about eleven words."""
    assert RYE[best_start(RYE, query, "Rye", Tokenizer(), 16) :].startswith(begins)


def test_a_rare_word_counts_more_than_one_that_is_said_often():
    text = "Salt binds water. " + "Salt and water are mixed again for a good long time. " * 3 + "Soda lifts the cake."
    assert text[best_start(text, "why salt or soda", "", Tokenizer(), 16) :].endswith("Soda lifts the cake.")
    assert best_start(text, "why salt and water", "", Tokenizer(), 16) == 0
    assert best_start("", "yeast", "", Tokenizer(), 16) == 0


def test_what_was_asked_for_stands_a_third_into_its_window():
    """Room for 20 words, so of the 19 beside it 5 come before: .3 * 19 is 5.7."""
    text = " ".join([f"w{n}" for n in range(50)] + ["yeast"] + [f"x{n}" for n in range(50)])
    assert text[best_start(text, "yeast", "", Tokenizer(), 28) :].startswith("w45 w46 w47 w48 w49 yeast x0")
    titled = best_start(text, "yeast", "five words are a title", Tokenizer(), 28)  # room for 15
    assert text[titled:].startswith("w46 w47 w48 w49 yeast")


def test_new_policies_are_shown_windows_and_old_ones_what_they_learnt_from(tmp_path):
    store = plain_store(tmp_path / "store", [Document("d", "Rye", RYE)])
    write_agent(AgentSettings(mode="sparse", passage_tokens=16), tmp_path)
    (tmp_path / "agent.json").write_text((tmp_path / "agent.json").read_text().replace(' "window": "start",\n', ""))
    old, new = read_agent(tmp_path), SearchOptions(mode="sparse", passage_tokens=16).settle(tmp_path / "none")
    assert (old.window, new.window) == ("start", "query")
    for settings, text in ((old, RYE), (new, RYE[RYE.index("winter. It") :])):
        [[hit]] = searching(store, settings)(["when is rye sown"])
        assert hit.text == text


def test_how_often_an_answer_is_shown():
    """A window shows 46 of a passage's 100 words, around what the question asks."""
    text = "Rye feeds many. " + "Oats feed horses well. " * 22 + "Rust harms rye; spores spread it in damp air. "
    chunks = {"d#0": Chunk("d", "Cereals", text, 0, len(text), 0, 1)}

    def share(*answers):
        asked = [Question(str(n), "What harms them?", answer, relevant_chunk_ids=("d#0",)) for n, answer in answers]
        return seen_share(asked, chunks, Tokenizer())

    assert share((1, "Rust, by spores in damp air.")) == 1
    assert share((1, "Rust, by spores in damp air."), (2, "Rye feeds many.")) == 0.5
    assert share((1, "Spores; it starves and freezes millions of poor people and beasts.")) == 0
    assert share((1, "")) is share() is None
