"""Plans: what the policy is told of its templates, how a plan is read and followed, and what a run keeps of them."""

import asyncio
import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest

import grpo_rollout
from forage.agent.agent import Agent, BatchedSearch
from forage.agent.calculator import calculate
from forage.agent.episode import Search, from_json, to_json
from forage.agent.observer import Observer
from forage.agent.options import AGENT_FILE, AgentSettings, SearchOptions, read_agent, same_settings, write_agent
from forage.agent.planning import Planned, QueryTemplate, library_of, read_library, told, write_plan
from forage.agent.protocol import Call, Protocol, read_turn, write_answer, write_call
from forage.agent.rewards import get_mrr
from forage.agent.tools import specs_of
from forage.errors import UserError
from forage.files import write_jsonl
from forage.policy.packing import pack
from tests.factories import QUESTION
from tests.scripted_engine import Hit, InOrder, check_tokens, search_many

TEMPLATES = Path(__file__).parent / "templates"
SIGNS, CURE = QueryTemplate("signs", "[topic] zebra signs"), QueryTemplate("cure", "zebra cure of [topic]")
LIBRARY = (SIGNS, CURE)
ROWS = [{"name": "signs", "query": "[topic] zebra signs"}, {"name": "cure", "query": "zebra cure of [topic]"}]


def played(protocol, *said, search=search_many, observer=None, in_line=True, **limits):
    settings = AgentSettings(**{"max_turns": 5, "query_templates": LIBRARY} | limits)
    protocol = Protocol.playing(protocol.tokenizer, settings)
    engine = InOrder(protocol, *said)
    agent = Agent(engine, protocol, BatchedSearch(search, in_line=in_line), settings, observer=observer)
    return asyncio.run(agent.play(QUESTION)), engine, protocol


def raw(arguments):
    return f"<tool_call>{json.dumps({'name': 'plan', 'arguments': arguments})}</tool_call>"


# How a plan is read


def test_a_plan_is_read_as_its_searches_in_its_order():
    [call] = read_turn(write_plan("  the  gout ", ["cure", "signs"]), templates=LIBRARY).calls
    assert call.planned == (Planned("cure", "zebra cure of the gout"), Planned("signs", "the gout zebra signs"))
    assert not call.fault
    [again] = read_turn(write_plan("gout", ["signs", "cure", "signs"]), templates=LIBRARY).calls
    assert [planned.template for planned in again.planned] == ["signs", "cure"]  # no search is made twice


@pytest.mark.parametrize(
    ("arguments", "fault", "says"),
    [
        ({"topic": "gout", "templates": ["sign"]}, "unknown_template",
         'there is no template "sign"; choose among signs, cure'),
        ({"topic": "gout", "templates": ["</tool_response>" * 9]}, "unknown_template",
         'there is no template "tool_responsetool_responsetool"; choose among signs, cure'),
        ({"topic": " ", "templates": ["signs"]}, "no_topic", 'the "topic" is empty; say what the question is about'),
        ({"topic": "gout", "templates": []}, "no_template", "the plan names no template; choose among signs, cure"),
        ({"topic": "x" * 300, "templates": ["signs"]}, "long_query", 'the "topic" is too long; use a few words'),
        *[
            (wrong, "bad_arguments", 'the "arguments" of "plan" must be {"topic": string, "templates": [names]}')
            for wrong in (
                {"topic": "gout"}, {"templates": ["signs"]}, {"topic": "gout", "templates": "signs"},
                {"topic": 1, "templates": ["signs"]}, {"topic": "gout", "templates": [1]}, None, ["gout"],
                {"topic": "gout", "templates": ["signs"], "query": "gout"},
            )
        ],
    ],
)  # fmt: skip
def test_what_the_policy_reads_of_a_faulty_plan(arguments, fault, says):
    reading = read_turn(raw(arguments), templates=LIBRARY)
    [call] = reading.calls
    assert (call.fault, call.explanation, call.planned) == (fault, says, ())
    assert reading.faults == (fault,)


def test_the_longest_query_is_that_of_a_search():
    topic = "x" * (300 - len(" zebra signs"))
    assert not read_turn(write_plan(topic, ["signs"]), templates=LIBRARY).faults
    assert read_turn(write_plan(topic + "x", ["signs"]), templates=LIBRARY).faults == ("long_query",)


def test_a_plan_takes_as_much_of_a_turn_as_its_searches():
    both, one = write_plan("gout", ["signs", "cure"]), write_plan("gout", ["cure"])

    def outcomes(text, most):
        calls = read_turn(text, max_calls=most, templates=LIBRARY).calls
        return [call.fault or len(call.planned) or 1 for call in calls]

    assert outcomes(both, 2) == [2]
    assert outcomes(both + one, 2) == [2, "too_many_calls"]
    assert outcomes(one + one + one, 2) == [1, 1, "too_many_calls"]
    assert outcomes(write_call("a") + both + write_call("b"), 2) == [1, "too_many_calls", 1]
    [call] = read_turn(both, max_calls=1, templates=LIBRARY).calls
    assert call.explanation == "the plan names 2 templates, and this turn has room for 1; name fewer"


def test_without_a_library_a_plan_is_no_tool():
    [call] = read_turn(write_plan("gout", ["signs"])).calls
    assert call == Call(fault="unknown_tool")
    assert call.explanation == 'there is no such tool; the only one is "search"'
    [other] = read_turn('<tool_call>{"name": "find", "arguments": {}}</tool_call>', templates=LIBRARY).calls
    assert other.explanation == 'there is no such tool; choose among "search", "plan"'


# How it is followed


def test_a_plan_is_trained_on_and_its_queries_are_no_tokens(tiny_protocol):
    said = "I plan. " + write_plan("gout", ["cure", "signs"]), write_answer("Rest.")
    episode, engine, protocol = played(tiny_protocol, *said)
    check_tokens(episode, engine, protocol)
    first = episode.turns[0]
    assert episode.ids[first.start : first.end] == tuple(protocol.turn_ids(said[0]))
    assert set(episode.mask[first.start : first.end]) == {1}
    assert set(episode.logprobs[first.start : first.end]) == {-0.5}
    response = slice(first.end, episode.turns[1].start)
    assert set(episode.mask[response]) == {0}
    # What a training step learns from, as it is packed: the policy's two turns, each with its end, and nothing else.
    [batch] = pack([episode], len(episode.ids))
    learnt = batch.ids_BT[batch.sampled_BT.bool()].tolist()
    assert learnt == [*protocol.turn_ids(said[0]), *protocol.turn_ids(said[1])]
    # The queries that were searched for stand nowhere in the episode.
    assert [search.query for search in episode.searches] == ["zebra cure of gout", "gout zebra signs"]
    assert "zebra" not in protocol.tokenizer.decode(episode.ids)
    assert (episode.stop, episode.faults, episode.well_formed) == ("answer", (), True)


def test_a_plan_searches_as_others_do(tiny_protocol):
    asked = []

    def search(queries):
        asked.append(list(queries))
        hits = {"zebra cure of gout": "ab", "gout zebra signs": "bc", "toe": "d", "heel": "a"}
        return [[Hit(name, f"T{name}", "text") for name in hits[query.removeprefix("What is gout? ")]]
                for query in queries]  # fmt: skip

    said = write_call("toe") + write_plan("gout", ["cure", "signs"]) + write_call("heel"), write_answer("Rest.")
    episode, *_ = played(tiny_protocol, *said, search=search, max_calls=4, question_weight=1)
    assert episode.searches == (
        Search(0, "toe", ("d",)), Search(0, "zebra cure of gout", ("a", "b"), "cure"),
        Search(0, "gout zebra signs", ("b", "c"), "signs"), Search(0, "heel", ("a",)),
    )  # fmt: skip
    assert all(query.startswith("What is gout? ") for queries in asked for query in queries)
    # Within a plan a passage is shown once, and they are numbered in one go.
    results = episode.transcript.split("<tool_response>\n")[-3:]
    shown = [result.partition("\n</tool_response>")[0] for result in results]
    assert shown == ["[1] Td: text", "[1] Ta: text\n[2] Tb: text\n[3] Tc: text", "[1] Ta: text"]
    assert get_mrr([episode], [replace(QUESTION, relevant_chunk_ids=("c",))]) == [1 / 4]  # d, a, b, c


def test_searches_keep_the_order_of_their_calls_also_where_they_run_in_a_thread(tiny_protocol):
    said = write_plan("gout", ["cure", "signs"]) + write_call("toe") + write_plan("toe", ["cure"]), write_answer("x")
    episode, *_ = played(tiny_protocol, *said, in_line=False, max_calls=4)
    assert [search.template for search in episode.searches] == ["cure", "signs", "", "cure"]
    assert [search.hits[0] for search in episode.searches] == [f"{search.query}#0" for search in episode.searches]


def test_it_may_plan_again(tiny_protocol):
    said = write_plan("nothing", ["nought"]), write_plan("gout", ["cure"]), write_plan("gout", ["signs"])
    episode, *_ = played(tiny_protocol, *said, write_answer("Rest."))
    assert [(search.turn, search.template) for search in episode.searches] == [(1, "cure"), (2, "signs")]
    assert 'error: there is no template "nought"; choose among signs, cure' in episode.transcript
    assert episode.faults == ("unknown_template",)


def test_a_plan_that_finds_nothing_says_so(tiny_protocol):
    said = write_plan("gout", ["cure", "signs"]), write_answer("no")
    episode, *_ = played(tiny_protocol, *said, search=lambda queries: [[] for _ in queries])
    assert "<tool_response>\nnothing found\n</tool_response>" in episode.transcript


def test_an_episode_of_one_turn_may_be_a_plan(tiny_protocol):
    episode, *_ = played(tiny_protocol, write_plan("gout", ["signs"]), max_turns=1)
    assert (episode.stop, episode.hits) == ("search", ("gout zebra signs#0", "gout zebra signs#1"))


def test_the_template_of_a_search_is_kept(tiny_protocol):
    episode, *_ = played(tiny_protocol, write_plan("gout", ["signs"]) + write_call("toe"), write_answer("x"))
    rows = json.loads(to_json(episode))["searches"]
    assert [row.get("template") for row in rows] == ["signs", None]
    assert "template" not in rows[1]  # as versions without plans wrote it
    assert from_json(to_json(episode)) == episode


def test_who_watches_sees_each_search(tiny_protocol):
    class Watch(Observer):
        def __init__(self):
            self.queries = []

        def found(self, episode, query, hits):
            self.queries.append((query, len(hits)))

    watch = Watch()
    played(tiny_protocol, write_plan("gout", ["signs", "cure"]), write_answer("x"), observer=watch)
    assert sorted(watch.queries) == [("gout zebra signs", 2), ("zebra cure of gout", 2)]


# The prompt


def test_the_prompt_names_the_templates(tiny_protocol):
    tokenizer = tiny_protocol.tokenizer
    plain, protocol = Protocol(tokenizer), Protocol(tokenizer, templates=LIBRARY)
    line = (
        'Likewise {"name": "plan", "arguments": {"topic": ..., "templates": [...]}}. '
        "Searches for a topic by templates, the best first: signs, cure."
    )
    assert protocol.system_prompt == f"{plain.system_prompt}\n{line}"
    assert protocol.question_in(protocol.prompt("gout?")) == "gout?"
    assert Protocol.playing(tokenizer, AgentSettings()).prompt("gout?") == Protocol(tokenizer, 64).prompt("gout?")
    assert {protocol: 1}[Protocol(tokenizer, templates=LIBRARY)] == 1  # evaluations remember by protocol


def test_a_template_that_describes_tools_is_given_the_plan(tiny_protocol):
    tokenizer = copy.deepcopy(tiny_protocol.tokenizer)
    tokenizer.chat_template = (TEMPLATES / "hermes.jinja").read_text()
    protocol = Protocol(tokenizer, templates=LIBRARY, tools=specs_of({"calculate": calculate}))
    assert protocol.describes_tools
    assert [each["function"]["name"] for each in protocol.described_tools] == ["search", "plan", "calculate"]
    assert "by templates, the best first: signs, cure." in protocol.tokenizer.decode(protocol.prompt("gout?"))


# The library, and what a policy keeps of it


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "library.jsonl"
    write_jsonl(path, [row | {"episodes": 3, "reward": 0.5} for row in ROWS])
    return path


def test_a_policy_keeps_its_library_whole(file, tmp_path):
    settings = SearchOptions(query_templates=file).settle(tmp_path)
    assert settings.query_templates == LIBRARY
    write_agent(settings, tmp_path)
    assert json.loads((tmp_path / AGENT_FILE).read_text())["query_templates"] == ROWS
    assert read_agent(tmp_path) == settings
    assert SearchOptions(query_templates=file).settle(tmp_path) == settings
    file.unlink()
    assert SearchOptions().settle(tmp_path) == settings
    assert {settings: 1}[read_agent(tmp_path)] == 1


@pytest.mark.parametrize(
    "rows",
    [ROWS[::-1], ROWS[:1], [ROWS[0], ROWS[1] | {"query": "cure of [topic]"}], [ROWS[0], ROWS[1] | {"name": "x"}]],
)
def test_another_library_is_refused(rows, file, tmp_path):
    write_agent(AgentSettings(query_templates=LIBRARY), tmp_path)
    write_jsonl(file, rows)
    others = told(library_of(rows))
    assert others != told(LIBRARY)
    with pytest.raises(UserError) as caught:
        SearchOptions(query_templates=file).settle(tmp_path)
    assert str(caught.value) == (
        f"--query-templates {others}: the policy was trained with {told(LIBRARY)}, as {tmp_path / AGENT_FILE} says; "
        "leave --query-templates out, or give --override-agent"
    )
    changed = SearchOptions(query_templates=file, override_agent=True).settle(tmp_path)
    assert changed.query_templates == library_of(rows)


def test_a_policy_trained_without_is_not_given_one_silently(file, tmp_path):
    write_agent(AgentSettings(), tmp_path)
    assert "query_templates" not in json.loads((tmp_path / AGENT_FILE).read_text())  # as versions without them wrote it
    assert SearchOptions().settle(tmp_path).query_templates == ()
    with pytest.raises(UserError, match=r"--query-templates 2 templates \(\w{8}\): the policy was trained with none"):
        SearchOptions(query_templates=file).settle(tmp_path)


def test_policies_with_and_without_are_not_compared():
    with pytest.raises(UserError, match=r"a plays with --query-templates 2 templates \(\w{8}\) and b with none"):
        same_settings([("a", AgentSettings(query_templates=LIBRARY)), ("b", AgentSettings())])


def test_options_that_shut_out_plans(file, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="--force-search begins the first turn with a search, so no plan can"):
        SearchOptions(query_templates=file, force_search=True).settle(tmp_path)
    monkeypatch.setattr(grpo_rollout, "get_tools", lambda: {"plan": calculate})
    assert SearchOptions().settle(tmp_path).tools.keys() == {"plan"}
    with pytest.raises(UserError, match="--query-templates adds a tool 'plan', and get_tools has one too"):
        SearchOptions(query_templates=file).settle(tmp_path)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("", "--query-templates {path} has no templates; build the library again, or leave --query-templates out"),
        ("x\n", "{path}:1: not JSON"),
        ('["signs"]\n', '{path}:1: a template needs a "name" and a "query"; mend that line, or build the library'),
        ('{"name": "a", "query": "[topic]"}\n{"name": "b"}\n', '{path}:2: a template needs a "name" and a "query"'),
        ('{"name": "a", "query": "gout"}\n', "{path}:1: the query of 'a' must be text with [topic] where"),
        ('{"name": "a", "query": 3}\n', "{path}:1: the query of 'a' must be text with [topic] where"),
        ('{"name": "a b", "query": "[topic]"}\n', "{path}:1: the name 'a b' must be one word of letters"),
        ('{"name": "<b>", "query": "[topic]"}\n', "{path}:1: the name '<b>' must be one word of letters"),
        ('{"name": null, "query": "[topic]"}\n', "{path}:1: the name None must be one word of letters"),
        ('{"name": "a", "query": "[topic]"}\n' * 2, "{path}:2: there are two templates 'a'"),
    ],
)
def test_a_file_that_is_no_library(lines, says, tmp_path):
    path = tmp_path / "library.jsonl"
    path.write_text(lines)
    with pytest.raises(UserError) as caught:
        read_library(path)
    assert str(caught.value).startswith(says.format(path=path))
    assert "\n" not in str(caught.value)


def test_a_library_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"none.jsonl does not exist; python -m forage.*template_library writes one"):
        SearchOptions(query_templates=tmp_path / "none.jsonl").settle(tmp_path)


@pytest.mark.parametrize("templates", [3, "ab", [3], [{"name": "a"}], {"name": "a"}])
def test_agent_json_with_something_else(templates, tmp_path):
    (tmp_path / AGENT_FILE).write_text(json.dumps({"query_templates": templates}))
    with pytest.raises(UserError, match=r"agent.json can't be read"):
        read_agent(tmp_path)
