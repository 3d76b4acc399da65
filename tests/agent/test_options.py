"""agent.json: how a policy plays is kept beside it, taken from there, and refused where it is contradicted."""

import json

import pytest

from forage.agent.options import AgentSettings, SearchOptions, read_agent, same_settings, write_agent
from forage.agent.searcher import searching
from forage.errors import UserError
from forage.store.options import Fusion, StoreOptions
from tests.refusals import refused


@pytest.fixture
def policy(tmp_path):
    write_agent(AgentSettings(mode="sparse", k=5), tmp_path)
    return tmp_path


def test_what_is_written_is_read(policy):
    assert json.loads((policy / "agent.json").read_text()) == {
        "mode": "sparse", "k": 5, "passage_tokens": 64, "question_weight": 0, "max_turns": 4, "max_turn_tokens": 160,
        "max_tokens": 2048, "max_calls": 2, "max_query": 300, "force_search": False,
        "search_first": False,
        "task": "Answer the question from a library", "dense_weight": 0.6, "title_weight": 0.3,
        "title_share": True, "window": "start", "tools": {},
    }  # fmt: skip
    assert read_agent(policy) == AgentSettings(mode="sparse", k=5)


def test_what_is_left_out_comes_from_the_policy_and_for_a_new_one_from_the_defaults(policy, tmp_path):
    assert SearchOptions().settle(policy) == AgentSettings(mode="sparse", k=5)
    assert SearchOptions(k=5).settle(policy) == AgentSettings(mode="sparse", k=5)  # the same, said again
    assert SearchOptions(k=7).settle(tmp_path / "new") == AgentSettings(k=7, window="query")
    assert SearchOptions().settle(tmp_path / "run", policy) == AgentSettings(mode="sparse", k=5)


def test_a_disagreement_is_one_line_that_says_who_said_what(policy):
    with pytest.raises(UserError) as told:
        SearchOptions(k=3, max_turns=2).settle(policy)
    assert str(told.value) == (
        f"--k 3: the policy was trained with 5, as {policy}/agent.json says; leave --k out, or give --override-agent"
    )
    assert SearchOptions(k=3, override_agent=True).settle(policy) == AgentSettings(mode="sparse", k=3)


GARDEN = "Answer the question about gardening"


def test_a_policy_keeps_its_task(policy, tmp_path):
    new = SearchOptions(task=f" {GARDEN}.\n").settle(tmp_path / "new")
    assert new.task == GARDEN  # what follows in the prompt is ": search it first, ..."
    write_agent(new, tmp_path / "garden")
    assert SearchOptions().settle(tmp_path / "garden") == new
    assert SearchOptions(task=GARDEN).settle(tmp_path / "garden") == new
    with pytest.raises(UserError) as told:
        SearchOptions(task=GARDEN).settle(policy)
    assert str(told.value) == (
        f'--task "{GARDEN}": the policy was trained with "Answer the question from a library", as {policy}/agent.json '
        "says; leave --task out, or give --override-agent"
    )
    with refused(f'a plays with --task "{GARDEN}" and b with "Answer the question from a li'):
        same_settings([("a", new), ("b", AgentSettings())])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (SearchOptions(k=0), "--k 0 must be at least 1"),
        (SearchOptions(task=" . "), "--task '' must be a sentence without tags, such as 'Answer the question from"),
        (SearchOptions(task="Write <answer>"), "--task 'Write <answer>' must be a sentence without tags"),
        (SearchOptions(max_turn_tokens=0), "--max-turn-tokens 0 must be at least 1"),
    ],
)
def test_bad_values_are_told(options, says, tmp_path):
    with refused(says):
        options.settle(tmp_path)


@pytest.mark.parametrize("text", ["{", '{"kk": 3}', "[1]"])
def test_a_broken_file_is_told_by_its_path(tmp_path, text):
    (tmp_path / "agent.json").write_text(text)
    with refused(r"agent.json is damaged .*; mend it, or delete it"):
        SearchOptions().settle(tmp_path)


def test_hybrid_search_weighs_as_the_policy_does():
    settings, asked = AgentSettings(dense_weight=0.7, title_weight=0.1, title_share=False), []

    class Store:
        options = StoreOptions()

        def search(self, queries, k, mode, **more):
            asked.append((queries, k, mode, more))

    searching(Store(), settings)(["gout"])
    assert asked == [(["gout"], 3, "hybrid", {"fusion": Fusion(dense_weight=0.7, title_weight=0.1, title_share=False)})]
