"""docs/recipes/tool.md: its tools answer an episode's calls, and its commands train a policy that is told of them."""

import asyncio
import json

import pytest

import grpo_rollout
from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings, read_agent
from forage.agent.protocol import Protocol, write_answer
from forage.agent.tools import specs_of
from forage.rollout.agreement import read_run
from tests.factories import QUESTION
from tests.recipes.run import calls_of, module_of, run
from tests.scripted_engine import InOrder, search_many

pytestmark = pytest.mark.usefixtures("no_plots")
QUICK = ("--mode", "sparse", "--max-turns", "3", "--max-turn-tokens", "200", "--token-budget", "1200")


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_the_tools_answer(tiny_protocol):
    tools = module_of("tool.md")["get_tools"]()
    settings = AgentSettings(tools=specs_of(tools))
    protocol = Protocol.playing(tiny_protocol.tokenizer, settings)
    calls = call("convert", amount=2, unit="lb") + call("convert", amount=2, unit="mile")
    engine = InOrder(protocol, calls, write_answer("0.9072 kg"))
    agent = Agent(engine, protocol, BatchedSearch(search_many, in_line=True), settings, tools=tools)
    episode = asyncio.run(agent.play(QUESTION))
    wrong = "error: unknown unit; choose among lb, oz, ft"
    assert [use.result for use in episode.uses] == ["0.9072 kg", wrong]


def test_the_commands(tiny, here, monkeypatch):
    (here / "data").symlink_to(tiny / "data")
    monkeypatch.setattr(grpo_rollout, "get_tools", module_of("tool.md")["get_tools"])
    warm, train = calls_of("tool.md")
    few = ("--num-demonstrations", "16", "--max-steps", "1", "--eval-every", "1")
    run(warm, *QUICK, "--batch-size", "2", *few)
    assert list(read_agent(here / "models/tools").tools) == ["convert"]
    given = ("--engine", "local", "--batch-size", "2", "--num-rollouts", "2", "--max-steps", "1", "--eval-every", "0")
    run(train, "--token-budget", "1200", "--on-collapse", "warn", *given)
    assert list(read_run(here / "runs/tools").tools) == ["convert"]
