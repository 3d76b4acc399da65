"""Plans: what the policy is told of its templates, and how a plan is followed."""

from dataclasses import replace

import pytest

from forage.agent.episode import Search, from_json, to_json
from forage.agent.protocol import write_answer, write_call
from forage.agent.rewards import get_mrr
from forage.extras.planning.tool import planner, write_plan
from forage.files import write_jsonl
from forage.policy.packing import pack
from tests.scripted_engine import QUESTION, Hit, check_tokens, play_with_tools

ROWS = [{"name": "signs", "query": "[topic] zebra signs"}, {"name": "cure", "query": "zebra cure of [topic]"}]
FOUND = {"zebra cure of gout": "ab", "gout zebra signs": "bc", "toe": "d", "heel": "a"}


def search(queries):
    return [[Hit(name, f"T{name}", "text") for name in FOUND[query]] for query in queries]


@pytest.fixture
def tools(tmp_path):
    write_jsonl(tmp_path / "library.jsonl", [row | {"episodes": 3, "reward": 0.5} for row in ROWS])
    return {"plan": planner(tmp_path / "library.jsonl")}


def test_a_plan_is_trained_on_and_its_queries_are_no_tokens(tiny_protocol, tools):
    said = "I plan. " + write_plan("gout", "cure", "signs"), write_answer("Rest.")
    episode, engine, protocol = play_with_tools(tiny_protocol, tools, *said, search=search)
    check_tokens(episode, engine, protocol)
    # What a training step learns from, as it is packed: the policy's two turns, each with its end, and nothing else.
    [batch] = pack([episode], len(episode.ids))
    learnt = batch.ids_BT[batch.sampled_BT.bool()].tolist()
    assert learnt == [*protocol.turn_ids(said[0]), *protocol.turn_ids(said[1])]
    assert [search.query for search in episode.searches] == ["zebra cure of gout", "gout zebra signs"]
    assert "zebra" not in protocol.tokenizer.decode(episode.ids)
    assert (episode.stop, episode.faults, episode.well_formed) == ("answer", (), True)
    assert from_json(to_json(episode)) == episode
    assert [use.arguments["templates"] for use in episode.uses] == ["cure, signs"]


@pytest.mark.parametrize("in_line", [True, False])
def test_a_plans_searches_count_in_the_order_of_the_calls(tiny_protocol, tools, in_line):
    said = write_call("toe") + write_plan("gout", "cure", "signs") + write_call("heel"), write_answer("Rest.")
    episode, *_ = play_with_tools(tiny_protocol, tools, *said, search=search, in_line=in_line, max_calls=3)
    assert episode.searches == (
        Search(0, "toe", ("d",)), Search(0, "zebra cure of gout", ("a", "b")),
        Search(0, "gout zebra signs", ("b", "c")), Search(0, "heel", ("a",)),
    )  # fmt: skip
    # Within a plan a passage is shown once, and they are numbered in one go.
    results = episode.transcript.split("<tool_response>\n")[-3:]
    shown = [result.partition("\n</tool_response>")[0] for result in results]
    assert shown == ["[1] Td: text", "[1] Ta: text\n[2] Tb: text\n[3] Tc: text", "[1] Ta: text"]
    assert get_mrr([episode], [replace(QUESTION, relevant_chunk_ids=("c",))]) == [1 / 4]  # d, a, b, c


@pytest.mark.parametrize(
    ("topic", "templates", "says"),
    [
        ("gout", ["sign"], '"templates" must be at most 2 of signs, cure'),
        (" ", ["signs"], 'the "topic" must say in a few words'),
    ],
)
def test_the_policy_reads_what_is_wrong_and_may_plan_again(tiny_protocol, tools, topic, templates, says):
    said = write_plan(topic, *templates), write_plan("gout", "cure", "cure"), write_answer("Rest.")
    episode, *_ = play_with_tools(tiny_protocol, tools, *said, search=search, max_turn_tokens=400, max_query=400)
    assert f"<tool_response>\nerror: {says}" in episode.transcript
    assert episode.searches == (Search(1, "zebra cure of gout", ("a", "b")),)  # named twice, searched for once
