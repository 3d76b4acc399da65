"""Self-consistency: majority and medoid by hand; a fused ranking and what it says of itself."""

import pytest

from forage.evaluation.outcomes import FUSED
from forage.evaluation.strategies.self_consistency import SelfConsistency, agreed, fuse_hits, plain
from tests.scripted_engine import check_books, run, turns


@pytest.mark.parametrize(
    ("answers", "place"),
    [
        (["heat", "The rest.", "rest"], 1),  # two of three say the same
        (["x y z w", "a b", "b c", "c d"], 2),  # none does: the middle one
        (["", "", "rest"], 2),
        (["", ""], 0),
        # Two of five are equal, which is no majority: the medoid is another one.
        (["q r", "q r", "a b c", "a b d", "a b"], 4),
    ],
)
def test_which_answer_is_agreed_on(answers, place):
    assert agreed(answers) == place


def test_what_does_not_count():
    assert plain("The joints – of a toe.") == "joints of toe"


def test_the_agreed_answer_counts(protocol):
    samples = {"0": ("a", "heat"), "1": ("b", "Rest"), "2": ("c", "rest."), "3": ("d", "the rest")}
    outcome, engine = run(SelfConsistency(n=4), protocol, turns(samples))
    assert outcome.episode.id == "q1/1"
    assert engine.most_at_once == 4
    check_books(outcome, engine)


def test_fusion_by_hand():
    # b: 1/62 + 1/61 + 1/61; a: 1/61; c: 1/62.
    assert fuse_hits([("a", "b"), ("b", "c"), ("b",)]) == ["b", "a", "c"]
    assert fuse_hits([(), ()]) == []
    assert fuse_hits([("x", "y"), ("y", "x")]) == ["x", "y"]  # equal ones in the order they were seen


def test_what_was_found_is_agreed_on(protocol):
    passages = {
        "a": {"wrong#0": "", "right#0": ""},
        "b": {"right#0": "", "other#0": ""},
        "c": {"right#0": "", "wrong#0": ""},
    }
    samples = {"0": ("a", "rest"), "1": ("b", "ice"), "2": ("c", "rest")}
    plainly, _ = run(SelfConsistency(n=3), protocol, turns(samples), passages)
    outcome, engine = run(SelfConsistency(n=3, fuse=True), protocol, turns(samples), passages)
    assert plainly.episode.hits == ("wrong#0", "right#0")
    assert outcome.episode.hits == ("right#0", "wrong#0")  # no longer than what each found
    assert outcome.episode.answer == "rest"
    assert [(s.turn, s.query) for s in outcome.episode.searches] == [(FUSED, "a | b | c")]
    assert [episode.searches[0].turn for episode in outcome.tried] == [FUSED, 0, 0]
    assert (outcome.sampled, outcome.read) == (plainly.sampled, plainly.read)
    check_books(outcome, engine)


def test_who_made_no_search_is_given_none(protocol):
    """Else its format would be that of an episode that searched."""
    samples = {"0": (None, "rest"), "1": ("a", "rest"), "2": ("a", "ice")}
    outcome, _ = run(SelfConsistency(n=3, fuse=True), protocol, turns(samples), {"a": {"right#0": ""}})
    assert (outcome.episode.id, outcome.episode.searches) == ("q1/0", ())


def test_fusing_nothing(protocol):
    outcome, _ = run(SelfConsistency(n=2, fuse=True), protocol, turns({"0": (None, "x"), "1": (None, "x")}))
    assert outcome.episode.hits == ()
