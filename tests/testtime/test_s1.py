"""Budget forcing: what is forced, cut and counted, token by token."""

import asyncio

import pytest
from transformers import AutoModelForCausalLM

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol, write_answer, write_call
from forage.data.records import read_questions
from forage.engines.base import EngineError, Sampling
from forage.engines.local import LocalEngine
from forage.errors import UserError
from forage.evaluation.baselines import single
from forage.store.document_store import DocumentStore
from forage.testtime.s1 import BudgetForcing
from tests.scripted_engine import check_books, run
from tests.tiny import make_data, make_taught_base, make_tokenizer, teach

FOUND = {"gout": {"c#0": "Rest helps."}}
THOUGHT = "Passage 1 says: Rest helps. That answers it."  # as the teacher thinks


def script(*parts):
    """The answer turn's parts, one for each request."""
    left = list(parts)

    def say(name, turn, text):
        return write_call("gout") if turn == 0 else left.pop(0)

    return say


def said(episode, protocol):
    """(the answer turn's tokens of the policy's own, the forced ones), as texts."""
    turn = episode.turns[-1]
    pairs = list(zip(episode.ids, episode.mask, strict=True))[turn.start : turn.end]
    return tuple(protocol.tokenizer.decode([token for token, one in pairs if one == own]) for own in (1, 0))


def length(protocol, text):
    return len(protocol.turn_ids(text)) - 1


def test_an_answer_that_comes_too_early_has_to_wait(protocol):
    parts = ("No. " + write_answer("heat"), " it says rest and so on", ". " + write_answer("rest"))
    outcome, engine = run(BudgetForcing(min_thinking=5, max_thinking=40), protocol, script(*parts), FOUND)
    episode = outcome.episode
    assert said(episode, protocol) == ("No. it says rest. <answer>rest</answer><|im_end|>", " Wait")
    assert (episode.answer, episode.stop) == ("rest", "answer")
    # The first part asked for five tokens: "No.", which was kept, and three of the answer, which were cut.
    assert [request.max_tokens for request in engine.requests[1:]] == [5, 3, 40 - 5]
    assert outcome.extra_sampled == 3
    assert all(logprob == 0 for logprob, one in zip(episode.logprobs, episode.mask, strict=True) if not one)
    check_books(outcome, engine)


def test_what_was_forced_is_read_and_not_sampled(protocol):
    parts = ("No. " + write_answer("heat"), " rest and so on and on and on", "rest</answer>")
    outcome, engine = run(BudgetForcing(min_thinking=6, max_thinking=6), protocol, script(*parts), FOUND)
    assert said(outcome.episode, protocol)[1] == " Wait\n<answer>"
    assert outcome.read == len(outcome.episode.ids) - outcome.episode.sampled
    check_books(outcome, engine)


def test_at_the_budget_the_answer_is_opened(protocol):
    long = "It may be this or that or something else and so on and on"
    outcome, engine = run(BudgetForcing(min_thinking=0, max_thinking=6), protocol, script(long, "rest</answer>"), FOUND)
    own, forced = said(outcome.episode, protocol)
    assert forced == "\n<answer>"
    assert own == protocol.tokenizer.decode(protocol.turn_ids(long)[:6]) + "rest</answer><|im_end|>"
    assert (outcome.episode.answer, outcome.episode.stop, outcome.episode.faults) == ("rest", "answer", ())
    assert outcome.episode.well_formed
    assert outcome.extra_sampled == 0
    check_books(outcome, engine)


def test_an_early_end_is_suppressed_only_so_often(protocol):
    strategy, limits = BudgetForcing(min_thinking=8, max_thinking=40, waits=2), AgentSettings(max_turns=2)
    outcome, engine = run(strategy, protocol, script("a", "b", "c"), FOUND, limits=limits)
    turn = outcome.episode.turns[1]
    assert protocol.text(outcome.episode.ids[turn.start : turn.end]) == "a Waitb Waitc"
    assert outcome.episode.ids[turn.end - 1] == protocol.end_of_turn
    assert outcome.extra_sampled == 2  # two ends of turn
    assert turn.faults == ("no_action",)
    check_books(outcome, engine)


def test_a_turn_that_searches_is_left_alone(protocol):
    say = script(write_call("gout"), "Passage 1 says so." + write_answer("rest"), "x", "y")
    free = BudgetForcing(min_thinking=2, max_thinking=60)
    outcome, _ = run(free, protocol, say, FOUND, limits=AgentSettings(max_turn_tokens=160))
    assert len(outcome.episode.searches) >= 1
    assert said(outcome.episode, protocol)[1] == ""


def test_without_bounds_it_is_plain_sampling(protocol):
    plain, first = run(play, protocol, script("So." + write_answer("rest")), FOUND)
    outcome, second = run(
        BudgetForcing(min_thinking=0, max_thinking=10**4), protocol, script("So." + write_answer("rest")), FOUND
    )
    assert outcome.episode.ids == plain.ids
    assert [request.seed for request in first.requests] == [request.seed for request in second.requests]


async def play(agent, question, seed):
    return await agent.play(question, 0, seed)


def test_before_anything_was_found_nothing_is_forced(protocol):
    outcome, _ = run(
        BudgetForcing(min_thinking=30, max_thinking=40), protocol, lambda name, turn, text: write_answer("rest")
    )
    assert (outcome.episode.answer, sum(outcome.episode.mask)) == ("rest", length(protocol, write_answer("rest")) + 1)


def test_the_limit_of_a_turn_holds_for_forced_tokens_too(protocol):
    long = "on and on and on and on and on and on and on and on and on and on and on and on"
    limits = AgentSettings(max_turn_tokens=24)
    outcome, _ = run(
        BudgetForcing(min_thinking=0, max_thinking=23), protocol, script(long, "rest"), FOUND, limits=limits
    )
    turn = outcome.episode.turns[-1]
    assert (turn.end - turn.start, outcome.episode.stop) == (24, "turn_tokens")


def test_an_engine_error_ends_the_episode_and_its_tokens_are_counted(protocol):
    say = script("No." + write_answer("heat"), EngineError("gone"))
    outcome, engine = run(BudgetForcing(min_thinking=5, max_thinking=40), protocol, say, FOUND)
    assert (outcome.episode.stop, outcome.extra_sampled) == ("engine", 5)
    check_books(outcome, engine)


def test_a_thought_that_ends_too_early_goes_on_behind_wait_on_its_line(protocol):
    """Five tokens go beyond the thought: the line break and four of the answer are cut."""
    thought = length(protocol, THOUGHT)
    parts = (f"{THOUGHT}\n{write_answer('rest')}", " Passage 1 says: Rest helps.\n" + write_answer("Rest."))
    strategy = BudgetForcing(min_thinking=thought + 5, max_thinking=60, waits=1)
    outcome, engine = run(strategy, protocol, script(*parts), FOUND)
    turn = outcome.episode.turns[-1]
    text = f"{THOUGHT} Wait Passage 1 says: Rest helps.\n<answer>Rest.</answer>"
    assert protocol.text(outcome.episode.ids[turn.start : turn.end]) == text
    assert said(outcome.episode, protocol)[1] == " Wait"
    assert outcome.extra_sampled == 5
    assert [request.max_tokens for request in engine.requests[1:]] == [thought + 5, 60 - thought]
    assert outcome.episode.well_formed
    check_books(outcome, engine)


def test_with_a_budget_of_nothing_the_answer_comes_first(protocol):
    outcome, engine = run(BudgetForcing(0, 0), protocol, script("rest</answer>"), FOUND)
    assert said(outcome.episode, protocol) == ("rest</answer><|im_end|>", "<answer>")
    assert (outcome.episode.answer, outcome.episode.well_formed, outcome.extra_sampled) == ("rest", True, 0)
    assert len(engine.requests) == 2
    assert engine.requests[1].ids[-length(protocol, "<answer>") :] == tuple(protocol.turn_ids("<answer>")[:-1])
    check_books(outcome, engine)


def test_at_a_line_break_the_answer_is_opened_without_another(protocol):
    budget = length(protocol, "Rest helps.\n")
    outcome, _ = run(BudgetForcing(0, budget), protocol, script("Rest helps.\nIt does.", "rest</answer>"), FOUND)
    assert said(outcome.episode, protocol) == ("Rest helps.\nrest</answer><|im_end|>", "<answer>")


def test_a_turn_without_room_for_the_whole_opening_ends(protocol):
    limits = AgentSettings(max_turn_tokens=length(protocol, write_call("gout")) + 1)
    budget = limits.max_turn_tokens - 1
    outcome, engine = run(BudgetForcing(0, budget), protocol, script("so on " * 40), FOUND, limits=limits)
    turn = outcome.episode.turns[-1]
    assert (turn.end - turn.start, outcome.episode.stop) == (limits.max_turn_tokens, "turn_tokens")
    assert len(engine.requests) == 2


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """(play, protocol) of a tiny policy that has learnt the teacher's thoughts, sampled greedily."""
    folder = tmp_path_factory.mktemp("thinker")
    make_data(folder / "data", 8)
    questions = read_questions(folder / "data" / "train.jsonl")
    base = make_taught_base(folder / "base", teach(folder, questions, thought_words=24), steps=100)
    model, store = AutoModelForCausalLM.from_pretrained(base), DocumentStore.open(folder / "data" / "store")
    settings = AgentSettings(mode="sparse")
    protocol = Protocol.playing(make_tokenizer(), settings)

    async def played(strategy):
        search = BatchedSearch(lambda queries: store.search(queries, 3, "sparse"), in_line=True)
        agent = Agent(LocalEngine(model, 4), protocol, search, settings, Sampling(temperature=0))
        return [await strategy(agent, question, 0) for question in questions[:3]]

    return lambda strategy: asyncio.run(played(strategy)), protocol


def last_turn(outcome, protocol):
    """(its text, which of its tokens before the answer are the policy's own)."""
    episode = outcome.episode
    turn = slice(episode.turns[-1].start, episode.turns[-1].end)
    ids, mask = episode.ids[turn], episode.mask[turn]
    text = protocol.text(ids)
    before = next(n for n in range(len(ids)) if len(protocol.text(ids[: n + 1])) > text.index("<answer>"))
    return text, list(mask[:before])


def test_a_policy_that_learnt_to_think_thinks_as_long_as_it_is_told(thinker):
    play, protocol = thinker
    free = [last_turn(outcome, protocol) for outcome in play(single)]
    for text, own in free:
        assert text.startswith("Passage 1 says: ")
        assert 20 < sum(own) == len(own) < 40
    for outcome in play(BudgetForcing(0, 0)):
        assert last_turn(outcome, protocol)[1] == []
    for (text, _), outcome in zip(free, play(BudgetForcing(0, 8)), strict=True):
        capped, own = last_turn(outcome, protocol)
        begun = capped.partition("\n<answer>")[0]
        assert text.startswith(begun)
        assert own[:8] == [1] * 8
        assert sum(own) == 8
        assert outcome.extra_sampled == 0
    for (text, _), outcome in zip(free, play(BudgetForcing(48, 48, waits=6)), strict=True):
        longer, own = last_turn(outcome, protocol)
        assert longer.startswith(text.partition("\n<answer>")[0] + " Wait")
        assert sum(own) == 48
        assert outcome.extra_sampled > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_thinking": 5, "max_thinking": 4},
        {"min_thinking": -1},
        {"waits": -1},
    ],
)
def test_bad_budgets_are_told(wrong):
    with pytest.raises(UserError, match="budget forcing"):
        BudgetForcing(**wrong)
