"""docs/recipes/tool.md: its tools answer an episode's calls, and its commands train a policy that is told of them."""

import pytest

import grpo_rollout
from forage.agent.options import read_agent
from forage.agent.tools import ToolError
from forage.rollout.agreement import read_run
from tests.recipes.run import calls_of, module_of, run

pytestmark = pytest.mark.usefixtures("no_plots")
QUICK = ("--mode", "sparse", "--max-turns", "3", "--max-turn-tokens", "200", "--token-budget", "1200")


def test_the_tool_answers():
    convert = module_of("tool.md")["get_tools"]()["convert"]
    assert convert(2, "lb") == "0.9072 kg"
    with pytest.raises(ToolError, match="unknown unit; choose among lb, oz, ft"):
        convert(2, "mile")


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
