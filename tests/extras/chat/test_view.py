"""What a terminal is sent: markup as letters, no control character, lines that fit, the passages an answer rests on."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from forage.agent.episode import Search, Use
from forage.agent.options import AgentSettings
from forage.extras.chat.session import View, passages_with, why
from forage.store.document_store import DocumentStore
from forage.store.fusion import Hit
from tests.factories import EPISODE, QUESTION

TOLD = "share of the answer's words in a passage (even all of them don't make it right)"
HOSTILE = "[bold]loud[/bold] [/nothing] :smile: \x1b[2J\x1b]0;owned\x07 a\rb \u202etxt \x9b31m"


def sent(episode, *searches, width=80, terminal=False, uses=()):
    """What one episode shows; a search is (query, its hits)."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, highlight=False, color_system=None)
    view = View(console, None)
    for query, hits in searches:
        view.found(None, query, hits)
    for use in uses:
        view.used(None, use)
    view.finished(replace(EPISODE, **episode))
    assert (view.searches, view.hits) == (0, {})
    return file.getvalue()


def hit(rank, text, title="Gout", score=0.5):
    return Hit(f"d{rank}#0", f"d{rank}", title, text, score, rank)


@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_text_is_shown_and_does_nothing(terminal):
    use = Use(0, "plan", {"topic": HOSTILE}, HOSTILE)
    text = sent({"answer": HOSTILE}, (HOSTILE, [hit(1, HOSTILE, HOSTILE)]), width=400, terminal=terminal, uses=[use])
    assert text.count("[bold]loud[/bold] [/nothing] :smile: \\x1b[2J\\x1b]0;owned\\x07") >= 5
    assert not [letter for letter in text if letter != "\n" and (ord(letter) < 32 or 127 <= ord(letter) < 160)]
    assert "\u202e" not in text


def test_a_search_with_its_hits_and_the_passages_that_hold_the_answers_words():
    hits = [hit(1, "Rest\nthen.", score=0.75), hit(2, "Ice and rest.", "", 0.25)]
    text = sent({"answer": "Rest, ice."}, ("toe", hits), ("b", []))
    assert [" ".join(line.split()) for line in text.splitlines()] == [
        "search 1: toe", "1 Gout: Rest then. 0.750", "2 Ice and rest. 0.250", "search 2: b", "nothing found",
        "answer", "Rest, ice.", TOLD, "100% Ice and rest.", "50% Gout: Rest then.",
    ]  # fmt: skip


def test_passages_that_hold_half_of_the_answers_words_most_first():
    hits = [hit(1, "Only ice.", ""), hit(2, "Sleep.", ""), hit(3, "Resting, with ices.", ""), hit(4, "", "Rest")]
    found = passages_with("Rest and the ice.", hits)
    assert [(one.rank, share) for one, share in found] == [(3, 1.0), (1, 0.5), (4, 0.5)]
    assert passages_with("Rest, ice, pills.", [hit(1, "Ice.")]) == []
    assert passages_with("the", [hit(1, "the")]) == []


def test_why_tells_the_rank_of_each_passage(tiny_data):
    episode = replace(EPISODE, searches=(Search(0, "remedy disease 3", ("d3#0",)),))
    store = DocumentStore.open(tiny_data / "store")
    assert why(store, AgentSettings(), QUESTION, episode) == ["'remedy disease 3' found d3#0 (sparse 1)"]
