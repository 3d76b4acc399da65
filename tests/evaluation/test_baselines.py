"""Baselines over an engine that says what it was told to: what the policy reads, what it answers, what it costs."""

import asyncio

import pytest

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings
from forage.agent.protocol import write_answer, write_call
from forage.evaluation.baselines import hyde, no_retrieval, plain_rag, rewrite
from tests.factories import QUESTION
from tests.scripted_engine import InOrder, check_tokens, search_many

SHOWN = "<tool_response>\n[1] Gout: Crystals in a joint.\n[2] Gout: Crystals in a joint.\n</tool_response>"


def play(strategy, protocol, *turns, question=QUESTION, search=search_many, **limits):
    asked = []

    def searched(queries):
        asked.extend(queries)
        return search(queries)

    async def run():
        engine = InOrder(protocol, *turns)
        return engine, await strategy(
            Agent(engine, protocol, BatchedSearch(searched), AgentSettings(**limits)), question, 5
        )

    engine, outcome = asyncio.run(run())
    check_tokens(outcome.episode, Requests(engine, outcome), protocol)
    assert outcome.tried == (outcome.episode,)
    assert engine.released[-1] == "q1/0"
    return engine, outcome, asked


class Requests:
    """The requests that the episode's turns were sampled for: one that was dropped, or wrote a passage, is none."""

    def __init__(self, engine, outcome):
        self.requests = engine.requests[-len(outcome.episode.turns) or len(engine.requests) :]


def text_of(protocol, ids):
    return protocol.tokenizer.decode(ids)


def test_plain_rag_looks_like_the_agents_own_conversation(protocol):
    answer = f"Passage 1 answers this.\n{write_answer('Crystals.')}"
    engine, outcome, asked = play(plain_rag, protocol, answer)
    played, _ = asyncio.run(agents_own(protocol, answer))
    episode = outcome.episode
    assert asked == ["What is gout?"]
    assert (episode.ids, episode.answer, episode.stop) == (played.ids, "Crystals.", "answer")
    # All that differs: the call was not sampled.
    assert sum(played.mask) - sum(episode.mask) == played.turns[0].end - played.turns[0].start
    assert episode.hits == played.hits == ("What is gout?#0", "What is gout?#1")
    assert (len(episode.turns), episode.faults, episode.well_formed) == (1, (), True)
    assert (outcome.extra_sampled, outcome.extra_read) == (0, 0)
    assert outcome.sampled_tokens == len(protocol.turn_ids(answer))
    assert outcome.sampled_tokens + outcome.read_tokens == len(episode.ids)
    assert len(engine.requests) == 1


def test_of_a_policy_that_only_searches_no_answer_is_asked(protocol):
    engine, outcome, asked = play(plain_rag, protocol, max_turns=1, max_turn_tokens=32)
    assert (asked, outcome.episode.hits) == (["What is gout?"], ("What is gout?#0", "What is gout?#1"))
    assert (outcome.episode.stop, outcome.sampled_tokens, engine.requests) == ("search", 0, [])


async def agents_own(protocol, answer):
    engine = InOrder(protocol, write_call("What is gout?"), answer)
    return await Agent(engine, protocol, BatchedSearch(search_many)).play(QUESTION), engine


@pytest.mark.parametrize(
    ("turn", "forced", "answer", "faults"),
    [
        (write_call("again"), "Crystals.</answer>", "Crystals.", ("answer_forced",)),
        ("", "Crystals.", "Crystals.", ("answer_not_closed", "answer_forced")),
        ("x", "A.</answer> B", "A.", ("text_after_answer", "answer_forced")),
    ],
)
def test_a_turn_without_an_answer_is_dropped_and_one_is_forced(protocol, turn, forced, answer, faults):
    engine, outcome, asked = play(plain_rag, protocol, turn, forced)
    episode = outcome.episode
    assert (episode.answer, episode.stop, episode.faults) == (answer, "answer", faults)
    assert asked == ["What is gout?"]  # the policy's own call is not run
    assert outcome.extra_sampled == len(protocol.turn_ids(turn))
    assert outcome.sampled_tokens == len(protocol.turn_ids(turn)) + len(protocol.turn_ids(forced))
    first, second = engine.requests
    assert text_of(protocol, second.ids) == f"{text_of(protocol, first.ids)}<answer>"
    assert first.seed != second.seed
    assert text_of(protocol, episode.ids).endswith(
        f"{SHOWN}<|im_end|>\n<|im_start|>assistant\n<answer>{forced}<|im_end|>"
    )


def test_without_retrieval_the_task_says_so_and_nothing_is_searched(protocol):
    engine, outcome, asked = play(no_retrieval, protocol, write_answer("A disease."))
    [request] = engine.requests
    told, own = text_of(protocol, request.ids), text_of(protocol, protocol.prompt("What is gout?"))
    assert own.startswith(
        "<|im_start|>system\nAnswer the question from a library: search it first, then write the answer between "
        "<answer> and </answer>.\nTo search, write <tool_call>"
    )
    assert told == own.replace(
        "from a library: search it first, then write the", "from what you know, without a search: write the"
    )
    assert (asked, outcome.episode.searches, outcome.episode.answer) == ([], (), "A disease.")
    assert not outcome.episode.well_formed


HYDE = "system\nWrite a short passage of a {}text that answers the question.<|im_end|>"
REWRITE = (
    "system\nWrite a search query for the question: the {}words that a text with the answer contains. Only words."
    "<|im_end|>"
)


@pytest.mark.parametrize(
    ("strategy", "told", "wanted"),
    [
        (hyde, HYDE.format(""), "What is gout? Uric acid forms < b>crystals< /b>."),
        (rewrite, REWRITE.format(""), "What is gout? What is gout? What is gout? Uric acid forms < b>crystals< /b>."),
    ],
)
def test_what_the_policy_writes_is_searched(protocol, strategy, told, wanted):
    written = "Uric acid forms\n<b>crystals</b>."
    engine, outcome, asked = play(strategy, protocol, written, write_answer("Crystals."))
    asks, answers = engine.requests
    assert asked == [wanted]
    assert [search.query for search in outcome.episode.searches] == [wanted]
    assert told in text_of(protocol, asks.ids)
    assert "tool_call" not in text_of(protocol, asks.ids)
    assert SHOWN in text_of(protocol, answers.ids)
    assert (outcome.extra_sampled, outcome.extra_read) == (len(protocol.turn_ids(written)), len(asks.ids))
    assert outcome.episode.answer == "Crystals."
