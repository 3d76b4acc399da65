"""What a terminal is sent: markup as letters, no control character, lines that fit, two answers where there is room."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from forage.chat.view import Ranks, SearchSeen, Trace, answer_seen, ranks_seen, search_seen, side_by_side, whole
from forage.store.hit import Hit
from tests.factories import EPISODE

HOSTILE = "[bold]loud[/bold] [/nothing] :smile: \x1b[2J\x1b]0;owned\x07 a\rb \u202etxt \x9b31m"


def sent(part, width=80, terminal=False):
    file = io.StringIO()
    Console(file=file, width=width, force_terminal=terminal, highlight=False, color_system=None).print(part)
    return file.getvalue()


def hit(rank, text, title="Gout", score=0.5):
    return Hit(f"d{rank}#0", f"d{rank}", title, text, score, rank)


def trace_of(*searches):
    return Trace(list(searches))


@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_text_is_shown_and_does_nothing(terminal):
    search = SearchSeen(HOSTILE, (hit(1, HOSTILE, HOSTILE),))
    episode = replace(EPISODE, answer=HOSTILE)
    parts = [search_seen(1, search), answer_seen(episode, trace_of(search)), whole(episode, trace_of(search)),
             ranks_seen(1, Ranks(HOSTILE, 9, {"sparse": (1,)}), search.hits, "sparse"),
             side_by_side([(HOSTILE, Text("x")), (HOSTILE, Text("y"))], 120)]  # fmt: skip
    for part in parts:
        text = sent(part, 240, terminal)
        assert "[bold]loud[/bold] [/nothing] :smile: \\x1b[2J\\x1b]0;owned\\x07" in text
        assert not [letter for letter in text if letter != "\n" and (ord(letter) < 32 or 127 <= ord(letter) < 160)]
        assert "\u202e" not in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_fit(width):
    search = SearchSeen("toe " * 60, (hit(1, "crystal " * 100),))
    episode = replace(EPISODE, answer="crystal " * 100)
    for part in (whole(episode, trace_of(search)), side_by_side([("a", whole(episode, trace_of(search)))] * 2, width)):
        assert max(map(len, sent(part, width).splitlines())) <= width


def test_ranks_with_a_star_for_the_agents_own_search_and_the_depth_for_what_is_beyond():
    ranks = Ranks("toe", 100, {"dense": (2, None), "sparse": (1, 7), "hybrid": (1, 2)})
    text = sent(ranks_seen(2, ranks, (hit(1, "A."), hit(2, "B.")), "hybrid"))
    assert [line.split() for line in text.splitlines()] == [
        ["search", "2:", "toe"], ["dense", "BM25", "fused*"], ["Gout:", "A.", "2", "1", "1"],
        ["Gout:", "B.", ">100", "7", "2"],
    ]  # fmt: skip
