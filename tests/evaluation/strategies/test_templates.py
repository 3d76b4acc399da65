"""Thought templates by hand: which one is retrieved, and what it says to the policy."""

from forage.agent.protocol import write_answer, write_call
from forage.data.records import Question
from forage.evaluation.strategies.templates import Template, ThoughtTemplates, hint, retrieved, topic_of
from tests.scripted_engine import check_books, run

SYMPTOMS = Template("symptoms", "What are the symptoms of [topic]?", ("[topic] signs",), 3, 0.9)
CAUSES = Template("causes", "What causes [topic]?", ("why [topic]", "[topic] origin"), 2, 0.8)
OTHER = Template("symptoms", "What are the symptoms of [topic]?", ("[topic]",), 9, 0.5)
TREATMENT = Template("treatment", "How is [topic] treated?", ("[topic] cure",), 2, 0.7)
LIBRARY = (CAUSES, OTHER, SYMPTOMS, TREATMENT)


def test_what_stands_in_the_slot():
    assert topic_of("What causes [topic]?", "what causes  low back pain ?") == "low back pain"
    assert topic_of("What causes [topic]?", "How is gout treated?") == ""


def test_which_template_is_retrieved():
    assert retrieved(LIBRARY, "What are the symptoms of gout?", 1) == [SYMPTOMS]  # .9 * 3/4 is over .5 * 9/10
    assert retrieved(LIBRARY, "What are the symptoms of gout?", 9) == [SYMPTOMS, OTHER]
    assert retrieved(LIBRARY, "Which symptom has gout", 1) == [SYMPTOMS]  # no shape fits: by words
    assert retrieved(LIBRARY, "Is gout dear", 1) == []
    assert retrieved((), "What causes gout?", 1) == []
    wide = Template("information", "What [topic]?", ("[topic]",), 99, 1.0)
    assert retrieved((wide, CAUSES), "What causes gout?", 1) == [CAUSES]  # the longer shape knows more


def test_what_a_template_says():
    assert 'searching for "why gout", then "gout origin" and' in hint(CAUSES, "What causes gout?")
    assert '"[topic] signs"' in hint(SYMPTOMS, "Which symptom has gout")
    assert "[topic] stands for" in hint(SYMPTOMS, "Which symptom has gout")


def test_the_hint_helps_a_policy_that_heeds_it(protocol):
    def say(name, turn, text):
        if turn == 0:
            return write_call("gout signs" if 'searching for "gout signs"' in text else "gout")
        return write_answer("pain")

    question = Question("q1", "What are the symptoms of gout?", "GOLD", "GOLD", "GOLD")
    passages = {"gout signs": {"right#0": "Pain."}, "gout": {"wrong#0": "x"}}
    outcome, engine = run(ThoughtTemplates(LIBRARY), protocol, say, passages, question)
    assert outcome.episode.hits == ("right#0",)
    assert "GOLD" not in outcome.episode.transcript  # focus, type and answer are not told
    check_books(outcome, engine)
    plain, _ = run(ThoughtTemplates(()), protocol, say, passages, question)
    assert plain.episode.hits == ("wrong#0",)
    assert plain.episode.ids[: plain.episode.turns[0].start] == tuple(protocol.prompt(question.question))
