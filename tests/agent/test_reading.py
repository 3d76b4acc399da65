"""Rewards for answers that read what was found, by hand: groundedness, and telling words."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from forage.agent.episode import Turn
from forage.agent.rewards import get_groundedness, get_telling_words, telling_words
from forage.agent.searcher import Searcher
from forage.data.records import Question
from forage.store.remote import RemoteStore
from tests.factories import EPISODE, answering
from tests.refusals import refused

GOUT = Question("q1", "What is gout?", "What is gout? Rest, ice and rest, or ice; uric crystals in a joint.")


def shown(*responses, answer="Gout is crystals and pain.", faults=()):
    """An episode whose tools responded so."""
    text = "<|im_start|>user\n".join(f"<tool_response>\n{response}\n</tool_response>" for response in responses)
    transcript = f"What has pain? Write <tool_call>, read <tool_response>. {text}<answer>{answer}</answer>"
    return replace(EPISODE, transcript=transcript, answer=answer, turns=(Turn(3, 5, faults), Turn(8, 10)))


@pytest.mark.parametrize(
    ("episode", "share"),
    [
        (shown("[1] Gout: Crystals in a joint."), 1 / 2),  # of crystals, pain: the prompt says pain, and is not read
        (shown("[1] Gout: Crystals.\n[2] Toe: PAIN!"), 1),
        (shown("[1] Gout: Crystals.", "[1] Toe: Pain."), 1),  # found by a second search
        (shown("[1] Gout: Red."), 0),
        (shown("[1] Gout: Crystals."  , answer="It is gout, and that is what it is."), 0),  # no such words
        (shown("[1] Gout: Crystals.", answer=""), 0),
        (shown("[1] Gout: Crystals.\n[2] Toe: Red.", answer="2"), 0),  # a passage's number
        (shown("[1] Gout: [2] of 5.", answer="2"), 1),
        (shown("nothing found", answer="Nothing found."), 0),
        (shown("error: the query is empty", answer="empty query"), 0),
        (shown("22.5 degrees", answer="22.5"), 1),  # of another tool
        (shown("[1] Gout: Crystals and pain.", faults=("forged_response",)), 0),
        (shown("[1] Gout: Crystals and pain.", faults=("bad_json",)), 1),
    ],
)  # fmt: skip
def test_groundedness_by_hand(episode, share):
    assert get_groundedness([episode], [GOUT]) == [share]


def searcher_of(*texts):
    return Searcher(lambda: SimpleNamespace(chunks=[SimpleNamespace(text=text) for text in texts]), None)


def test_telling_words_by_hand():
    """Of 3 passages 3 say rest, 2 joint, 1 ice and uric, none crystals. log(4/4) = 0, log(4/3) = .29, log(4/2) = .69,
    log(4/1) = 1.39; ice is said twice: 1.39."""
    searcher = searcher_of("Rest, ice.", "Rest the joint. A joint!", "Rest. Uric joint.")
    assert telling_words(GOUT, searcher) == ["ice", "crystals", "uric", "joint", "rest"]  # neither "what" nor "gout"
    many = replace(GOUT, answer="one two three four five six joint")
    assert telling_words(many, searcher) == ["one", "two", "three", "four", "five"]


def test_telling_words_that_an_answer_says():
    searcher = searcher_of("Rest.")
    questions = [GOUT] * 3 + [replace(GOUT, answer=""), replace(GOUT, answer="What is it? Gout.")]
    answers = answering("ICE, on the joint.", "", "Icecrystals", "ice", "gout")
    assert get_telling_words(answers, questions, searcher) == [2 / 5, 0, 0, None, None]


def test_how_rare_a_word_is_no_server_tells():
    server = RemoteStore.__new__(RemoteStore)
    server.path = "http://there"
    with refused(r"how rare a word is can't be asked of http://there; name the store's folder"):
        get_telling_words(answering("x"), [GOUT], Searcher(lambda: server, None))
