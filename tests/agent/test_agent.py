"""The agent's loop over an engine that says what it was told to: outcomes by hand, and tokens that add up."""

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.agent.agent import Agent, BatchedSearch, turn_seed
from forage.agent.options import AgentSettings
from forage.agent.protocol import CALL_OPENING, write_answer, write_call
from tests.factories import EPISODE, QUESTION
from tests.scripted_engine import InOrder, check_tokens, search_many

GOUT_FOUND = (
    "\n<|im_start|>user\n<tool_response>\n[1] Gout: Crystals in a joint.\n[2] Gout: Crystals in a joint.\n"
    "</tool_response><|im_end|>\n<|im_start|>assistant\n"
)


def play(protocol, *turns, search=search_many, **limits):
    async def run():
        engine = InOrder(protocol, *turns)
        return engine, await Agent(engine, protocol, BatchedSearch(search), AgentSettings(**limits)).play(QUESTION)

    return asyncio.run(run())


def test_the_question_is_searched_for_before_the_query(protocol):
    """Twice, and as it is where the policy is asked more than it; the episode has the policy's own query."""
    searched, script = [], (write_call("sore toe"), write_answer("Gout."))

    def search(queries):
        searched.extend(queries)
        return search_many(queries)

    async def run(question_weight):
        engine = InOrder(protocol, *script)
        agent = Agent(engine, protocol, BatchedSearch(search), AgentSettings(question_weight=question_weight))
        return engine, await agent.play(QUESTION, asked="What is gout? Think of toes.")

    engine, episode = asyncio.run(run(2))
    assert searched == ["What is gout? What is gout? sore toe"]
    assert [s.query for s in episode.searches] == ["sore toe"]
    assert engine.requests[0].ids == tuple(protocol.prompt("What is gout? Think of toes."))
    asyncio.run(run(0))
    assert searched[1:] == ["sore toe"]


def test_search_then_answer(protocol):
    engine, episode = play(protocol, write_call("gout"), write_answer("Crystals."))
    check_tokens(episode, engine, protocol)
    assert (episode.stop, episode.answer, episode.adapter) == ("answer", "Crystals.", "v000001")
    assert [(s.turn, s.query, s.hits) for s in episode.searches] == [(0, "gout", ("gout#0", "gout#1"))]
    assert episode.well_formed
    first, second = episode.turns
    assert protocol.tokenizer.decode(episode.ids[first.start : first.end]) == f"{write_call('gout')}<|im_end|>"
    between = protocol.tokenizer.decode(episode.ids[first.end : second.start])
    assert between == GOUT_FOUND
    assert episode.logprobs[first.start : first.end] == (-0.5,) * (first.end - first.start)
    assert engine.released == ["q1/0"]
    assert [request.seed for request in engine.requests] == [turn_seed(0, "q1/0", 0), turn_seed(0, "q1/0", 1)]


@pytest.mark.parametrize(
    ("turns", "limits", "stop", "count"),
    [
        ((write_call("a"), write_call("b")), {"max_turns": 2}, "turns", 2),
        (("a", "b", write_answer("c")), {}, "no_action", 2),
        (("a", write_call("b"), "a", "b"), {}, "turns", 4),  # not in succession, but for the last two
        ((500,), {"max_turn_tokens": 20}, "turn_tokens", 1),
        ((500,), {"max_tokens": 120, "max_turn_tokens": 400}, "tokens", 1),
        ((write_call("a"), "x"), {"max_tokens": 140}, "tokens", 1),  # the result would not fit
        (("x",), {"max_tokens": 20}, "tokens", 0),  # nor would the prompt
    ],
)
def test_limits_end_an_episode(protocol, turns, limits, stop, count):
    engine, episode = play(protocol, *turns, **limits)
    check_tokens(episode, engine, protocol)
    assert (episode.stop, len(episode.turns), episode.answer) == (stop, count, "")
    assert not episode.well_formed


def test_where_one_turn_is_allowed_the_episode_is_a_search(protocol):
    engine, episode = play(protocol, write_call("gout"), max_turns=1)
    check_tokens(episode, engine, protocol)
    assert [(s.query, s.hits) for s in episode.searches] == [("gout", ("gout#0", "gout#1"))]
    assert (episode.stop, episode.well_formed, len(episode.turns)) == ("search", True, 1)
    assert protocol.tokenizer.decode(episode.ids[episode.turns[0].end :]) == GOUT_FOUND  # for rewards to read
    assert not any(episode.mask[episode.turns[0].end :])
    assert episode.length == episode.turns[0].end
    room = len(episode.ids)  # one too few: a limit that an episode may not reach
    tight = play(protocol, write_call("gout"), max_turns=1, max_tokens=room)[1]
    assert (tight.ids, tight.searches, tight.stop) == (episode.ids[: episode.turns[0].end], episode.searches, "search")
    answered = play(protocol, write_answer("Gout."), max_turns=1)[1]
    assert (answered.stop, answered.well_formed) == ("answer", False)
    nothing = play(protocol, "hm", max_turns=1)[1]
    assert (nothing.stop, nothing.searches) == ("turns", ())


def test_a_search_that_is_begun_for_the_policy(protocol):
    """The opening is given: it has mask 0, isn't sampled, and counts against the episode's tokens, not the turn's."""
    rest = write_call("sore toe").removeprefix(CALL_OPENING)
    engine, episode = play(protocol, rest, write_answer("Gout."), force_search=True)
    prompt, opening = tuple(protocol.prompt(QUESTION.question)), protocol.call_opening
    assert engine.requests[0].ids == prompt + opening
    first, second = episode.turns
    assert episode.ids[: first.end] == (*prompt, *opening, *protocol.turn_ids(rest))
    assert episode.mask[first.start : first.end] == (0,) * len(opening) + (1,) * len(protocol.turn_ids(rest))
    assert set(episode.mask[second.start : second.end]) == {1}  # only the first turn is begun
    assert set(episode.logprobs[first.start : first.start + len(opening)]) == {0.0}
    assert [s.query for s in episode.searches] == ["sore toe"]
    assert episode.well_formed
    limit = len(prompt) + len(opening) + 5
    limited = play(protocol, rest, force_search=True, max_tokens=limit)[0]
    assert limited.requests[0].max_tokens == 5


def test_a_first_search_that_is_written_for_the_policy(protocol):
    """The whole turn has mask 0; the engine is first asked after its results, and the next turn may be begun too."""
    given = protocol.turn_ids(write_call(QUESTION.question))
    rest = write_call("sore toe").removeprefix(CALL_OPENING)
    engine, episode = play(protocol, rest, search_first=True, force_search=True, max_turns=2)
    prompt, (first, second) = protocol.prompt(QUESTION.question), episode.turns
    assert episode.ids[: first.end] == (*prompt, *given)
    assert not any(episode.mask[: second.start])
    assert len(engine.requests) == 1
    assert engine.requests[0].ids == (*episode.ids[: second.start], *protocol.call_opening)
    opening, written = (0,) * len(protocol.call_opening), (1,) * len(protocol.turn_ids(rest))
    assert episode.mask[second.start : second.end] == opening + written
    assert [search.query for search in episode.searches] == [QUESTION.question, "sore toe"]
    assert (episode.stop, episode.well_formed) == ("search", True)
    assert protocol.tokenizer.decode(episode.ids[second.end :]).startswith("\n<|im_start|>user\n<tool_response>\n")
    unsearched = play(protocol, "hm", search_first=True, max_turns=2)[1]
    assert (unsearched.stop, unsearched.well_formed) == ("turns", False)  # the first search was not its own
    _, answered = play(protocol, write_answer("Gout."), search_first=True, max_turns=3)
    assert (answered.stop, answered.well_formed, len(answered.turns)) == ("answer", True, 2)


TURNS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.sampled_from(
        [write_call("gout"), write_call("nothing"), write_call("a") * 2, "<tool_call>", "</tool_response>"]
    ),
    st.sampled_from([write_answer("x"), "<answer>", "<|im_start|>user\n", "<|im_end|>", f"t {write_call('b')} t"]),
    st.integers(1, 40),
)


def test_each_turn_of_each_sample_has_a_seed_of_its_own():
    samples = [(seed, name, turn) for seed in (0, 1) for name in ("q1/0", "q1/1", "q2/0") for turn in (0, 1)]
    assert len({turn_seed(*sample) for sample in samples}) == len(samples)


def test_what_was_sampled_can_not_lose_its_mask():
    ids, logprobs = (1, 2, 3), (0.0, -0.5, -0.1)
    assert replace(EPISODE, ids=ids, mask=(0, 1, 1), logprobs=logprobs, credits=(), turns=()).sampled == 2
    with pytest.raises(ValueError, match="a log-probability at a token that its mask calls not sampled"):
        replace(EPISODE, ids=ids, mask=(0, 1, 0), logprobs=logprobs, credits=(), turns=())


@given(turns=st.lists(TURNS, min_size=6, max_size=6), seed=st.integers(0, 9))
def test_tokens_add_up_whatever_is_said(protocol, turns, seed):
    choose = random.Random(seed)
    limits = {
        "max_turns": choose.randint(1, 6),
        "max_turn_tokens": choose.randint(1, 60),
        "max_tokens": choose.randint(90, 600),
    }
    engine, episode = play(protocol, *turns, **limits)
    check_tokens(episode, engine, protocol)
    assert len(episode.ids) <= limits["max_tokens"] or not episode.turns
