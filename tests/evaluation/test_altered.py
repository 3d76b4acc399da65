"""Altered stores: exactly what each search finds, by hand, and what the policy then reads."""

import asyncio

import pytest

from forage.agent.agent import BatchedSearch
from forage.agent.protocol import write_answer, write_call
from forage.agent.searcher import searching
from forage.data.records import Document, Question
from forage.evaluation.altered import ALTERATIONS, Altered
from forage.evaluation.baselines import single
from forage.evaluation.player import CachingAgent
from tests.evaluation.settings import setting_of
from tests.factories import plain_store
from tests.scripted_engine import Scripted

# BM25 ranks shorter texts higher where they say a word as often: gout0 to gout4, then what says nothing of it.
TEXTS = {
    "gout0": "Gout hurts.", "gout1": "Gout hurts at night.", "gout2": "Gout hurts at night in May.",
    "gout3": "Gout hurts at night in May and June too.", "gout4": "Gout hurts at night in May, June, July, August.",
    "rye0": "Rye grows.", "rye1": "Rye grows in fields.", "rye2": "Rye grows in fields far from any town.",
    "sea": "Waves.", "sky": "Clouds.", "moon": "Craters.",
}  # fmt: skip
GOUT = Question("q1", "What of gout?", "It hurts.", relevant_chunk_ids=("gout3#0", "gout1#0"))
RYE = Question("q2", "What of rye?", "It grows.", relevant_chunk_ids=("rye2#0",))
SAME = Question("q3", "And gout?", "It hurts.", relevant_chunk_ids=("gout1#4",))  # of a document that answers q1 too
ALL = (GOUT, RYE, SAME)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    documents = [Document(name, name.rstrip("01234").title(), text) for name, text in TEXTS.items()]
    return plain_store(tmp_path_factory.mktemp("altered") / "store", documents)


def found(name, setting, question=GOUT, query="gout"):
    hits = ALTERATIONS[name](setting, question, query)
    assert [hit.rank for hit in hits] == [*range(1, len(hits) + 1)]
    assert all(hit.text == TEXTS[hit.doc_id] for hit in hits)
    return [hit.chunk_id.removesuffix("#0") for hit in hits]


@pytest.mark.parametrize(
    ("name", "k", "expected"),
    [
        ("nothing_found", 2, []),
        ("others_found", 2, ["rye0", "rye1"]),  # of the one question that is about another document
        ("right_left_out", 2, ["gout0", "gout2"]),
        ("right_left_out", 3, ["gout0", "gout2", "gout4"]),
        ("right_first", 2, ["gout1", "gout0"]),  # the better of the two that answer
        ("right_first", 3, ["gout1", "gout0", "gout2"]),
        ("right_first", 1, ["gout3"]),  # found by none: the first that the question names
    ],
)
def test_what_each_alteration_finds(store, name, k, expected):
    assert found(name, setting_of(store, ALL, k=k)) == expected


def test_random_passages_never_answer_and_are_the_same_each_time(store):
    setting = setting_of(store, ALL, k=9)
    assert sorted(found("random_found", setting)) == sorted(TEXTS.keys() - {"gout1", "gout3"})
    few = setting_of(store, ALL, k=3)
    drawn = {query: found("random_found", few, query=query) for query in "abcdefgh"}
    assert drawn == {query: found("random_found", few, query=query) for query in "abcdefgh"}
    assert all(len(names) == 3 for names in drawn.values())
    assert len({tuple(names) for names in drawn.values()}) > 5  # another query finds others
    assert {name for names in drawn.values() for name in names} > {"rye0"}


def test_what_another_question_finds_lacks_what_answers_this_one(store):
    """Its search finds passages of this question's, too."""
    other = Question("q4", "Gout, gout?", "", relevant_chunk_ids=("gout0#0",))
    assert found("others_found", setting_of(store, [GOUT, other], k=3)) == ["gout0", "gout2", "gout4"]


def test_the_policy_reads_what_was_altered_though_the_agent_remembers_the_episode(store, protocol):
    setting = setting_of(store, ALL)
    said = []

    def say(name, turn, text):
        said.append(text)
        return write_call("gout") if not turn else write_answer("It hurts.")

    async def play():
        engine = Scripted(protocol, say)
        search = BatchedSearch(searching(store, setting.agent), in_line=True)
        agent = CachingAgent(engine, protocol, search, setting.agent)
        before = (await single(agent, GOUT, 0)).episode
        return before, (await Altered(ALTERATIONS["right_left_out"], setting)(agent, GOUT, 0)).episode

    before, after = asyncio.run(play())
    assert [(search.query, search.hits) for search in before.searches] == [("gout", ("gout0#0", "gout1#0"))]
    assert [(search.query, search.hits) for search in after.searches] == [("gout", ("gout0#0", "gout2#0"))]
    assert "[1] Gout: Gout hurts.\n[2] Gout: Gout hurts at night in May.\n" in said[-1]
    assert (after.answer, after.id) == (before.answer, before.id)
