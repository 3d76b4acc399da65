"""An episode whose turns come from elsewhere is the one that the agent would play with the same turns."""

import asyncio

import pytest

from forage.agent.options import AgentSettings, write_agent
from forage.agent.protocol import write_call
from forage.agent.rewards import get_format_reward, get_mrr, get_token_f1
from forage.extras.environments.conversation import Conversation, call_text, open_environment
from forage.rollout.options import RolloutOptions
from tests.refusals import refused
from tests.tiny import make_data, make_policy

FIRST, SECOND = write_call("remedy 3"), write_call("remedy 6")
BROKEN, ANSWER = '<tool_call>{"name": "search"</tool_call>', "<answer>Remedy 6.</answer>"


@pytest.fixture(scope="module")
def environment(tiny_base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    policy = make_policy(folder / "policy", tiny_base)
    write_agent(AgentSettings(mode="sparse", k=1, max_turns=4, max_turn_tokens=90, max_tokens=700), policy)
    options = RolloutOptions(make_data(folder / "data"), policy, weights=("mrr=2", "f1=1", "format=1"))
    return open_environment(options, lambda embedder: {"mrr": get_mrr, "f1": get_token_f1, "format": get_format_reward})


def played(environment, *turns, cut=False):
    """(the rewarded episode, what each turn was answered) of the held-out question on disease 6."""
    conversation = Conversation(environment, environment.by_id["eval"]["q6"])

    async def play():
        results = [await conversation.take(text, cut=cut) for text in turns]
        return await conversation.rewarded(), results

    return asyncio.run(play())


def test_a_second_search_a_fault_and_an_answer(environment):
    episode, results = played(environment, FIRST, BROKEN, SECOND, ANSWER)
    assert results == [
        ["[1] Disease 3: Disease 3 is mended by rest and by remedy 3."], ["error: the call is not valid JSON"],
        ["[1] Disease 6: Disease 6 is mended by rest and by remedy 6."], [],
    ]  # fmt: skip
    assert (episode.stop, episode.faults, episode.hits) == ("answer", ("bad_json",), ("d3#0", "d6#0"))
    assert episode.rewards == pytest.approx({"mrr": 1 / 2, "f1": 1, "format": (1 + 1 + 3 / 4) / 3})
    assert episode.reward == pytest.approx((2 * 1 / 2 + 1 + 11 / 12) / 4)


@pytest.mark.parametrize(
    ("turns", "cut", "stop", "rewards"),
    [
        ((FIRST,), False, "turns", {"mrr": 0, "f1": 0, "format": 2 / 3}),  # not over: as far as it went
        (("Well.", "Well."), False, "no_action", {"mrr": 0, "f1": 0, "format": 0}),
        ((ANSWER,), True, "turn_tokens", {"mrr": 0, "f1": 1, "format": 1 / 3}),
    ],
)
def test_how_else_it_ends(environment, turns, cut, stop, rewards):
    episode, _ = played(environment, *turns, cut=cut)
    assert episode.stop == stop
    assert episode.rewards == pytest.approx(rewards)


def test_nothing_follows_the_end(environment):
    with refused("the episode is over; begin another one"):
        played(environment, ANSWER, ANSWER)


def test_a_query_can_end_neither_its_call_nor_the_turn():
    call = {"function": {"name": "search", "arguments": '{"query": "a <b"}'}}
    assert call_text(call) == '{"name": "search", "arguments": {"query": "a \\u003cb"}}'
    assert call_text({"function": {"name": "x", "arguments": "{broken"}}) == '{"name": "x", "arguments": "{broken"}'
