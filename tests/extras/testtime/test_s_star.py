"""S*: the candidate that fetched evidence speaks for, not the one that most gave or that came first."""

from forage.agent.protocol import write_answer, write_call
from forage.extras.testtime.s_star import SStar, clusters, lacking
from tests.factories import answering
from tests.scripted_engine import QUESTION, check_books, run

PASSAGES = {
    "gout": {"a#0": "Gout is mended by heat, ice and rest"},
    "tell": {"b#0": "Ice mends it."},
    # What a search for the words in which the two answers differ finds.
    f"{QUESTION.question} heat ice": {"c#0": "Heat mends it."},
}


def two_say_heat_one_says_ice(name, turn, text):
    if name.startswith("pair"):
        assert "Two answers to a question differ. Write one" in text
        return "tell"
    return write_call("gout") if turn == 0 else write_answer("by ice" if name == "2" else "by heat")


def test_the_evidence_decides(protocol):
    outcome, engine = run(SStar(n=3), protocol, two_say_heat_one_says_ice, PASSAGES)
    assert (outcome.episode.id, outcome.episode.answer) == ("q1/2", "by ice")
    assert outcome.episode.hits == ("a#0",)  # evidence is not what the episode found
    asked = [request for request in engine.requests if "pair" in request.episode]
    assert len(asked) == 1  # equal answers are one
    assert (outcome.extra_sampled, outcome.extra_read) == (len(protocol.turn_ids("tell")), len(asked[0].ids))
    assert outcome.searches == 4  # a candidate's each, and the judge's
    check_books(outcome, engine, asides=1)


def test_a_candidate_is_told_what_the_search_lacked_until_it_finds_it(protocol):
    passages = {**PASSAGES, "toes": {"d#0": "Toes: rest mends a broken one"}}

    def say(name, turn, text):
        if name in "01":  # finds another thing, and makes its answer up
            return write_call("toes") if turn == 0 else write_answer("magic rest")
        if turn == 0:
            assert (
                "What mends gout? An earlier search was: toes What it found lacks these words of the question: gout? "
                "An earlier answer was: magic rest No passage supports these words of it: magic Search in other words"
            ) in text
            return write_call("gout")
        return write_answer("by ice")

    outcome, engine = run(SStar(n=2, rounds=3), protocol, say, passages)
    # Each candidate was revised once, and then left alone, as the question and the answer stand in what was found.
    assert sorted(episode.id for episode in outcome.tried) == ["q1/0", "q1/1", "q1/2", "q1/3"]
    assert (outcome.episode.id, outcome.episode.answer) == ("q1/2", "by ice")
    check_books(outcome, engine)


def test_the_parts_by_hand():
    assert [[e.id for e in group] for group in clusters(answering("Rest.", "ice", "the rest"))] == [
        ["q/0", "q/2"], ["q/1"],
    ]  # fmt: skip
    assert lacking("rest, ice daily", ["rest and heat daily"]) == "ice"
    assert lacking("rest and heat daily", ["rest, ice daily"]) == "heat"
