"""The agents of docs/gateway.md as they stand there, each trained for two steps with the real packages."""

import json
import os
import subprocess
import sys

import pytest

from forage.agent.episode import read_episodes
from forage.runs.stats import read_stats
from tests import ROOT
from tests.installed import installed
from tests.pages import fenced
from tests.tiny_training import tiny_args

PAGE = ROOT / "docs" / "gateway.md"
# As a user would, in a process of its own: what a page's block defines goes into grpo_rollout.py. The tiny model hardly
# ever ends a turn, so more tokens than one do.
PROGRAM = """
import sys
sys.path += [sys.argv.pop(1)]
import grpo_rollout
from forage.agent.protocol import Protocol
Protocol.stop_ids = (2, *range(300, 420))
{block}
grpo_rollout.get_agent = get_agent
import runpy
runpy.run_module("tests.tiny_training", run_name="__main__", alter_sys=True)
"""


# A policy that searches and then answers, with the same agent.
SCRIPTED = """
import json, sys
sys.path += [sys.argv.pop(1)]
{block}
from forage.agent.protocol import Protocol, write_call
from tests.extras.gateway.own_agents import played
from tests.tiny import make_tokenizer
episode, _ = played(get_agent().agent, Protocol(make_tokenizer()), "I look. " + write_call("gout"), "Rest.")
queries = [search.query for search in episode.searches]
print(json.dumps([queries, episode.answer, len(episode.turns), len(episode.earlier)]))
"""


def run(program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def trained(block, tiny, run_dir, packages=""):
    """(each step's figures, all episodes) of two steps with the block's agent."""
    arguments = tiny_args(tiny, run_dir, "--max-steps", "2", "--eval-every", "0", "--report-to", "none")
    run(PROGRAM.format(block=block), packages, "train", *arguments)
    steps = [run_dir / "episodes" / name for name in ("000000", "000001")]
    return read_stats(run_dir), [episode for step in steps for episode in read_episodes(step / "trainer.jsonl")]


def check(stats, episodes):
    """All episodes were played through, and learnt from."""
    assert len(episodes) == 24
    assert {episode.stop for episode in episodes} <= {"answer", "turns"}
    assert all(step.training["grad_norm"] > 0 for step in stats)


def searches_and_answers(block, packages=""):
    """Whether the agent hands on a call, and gives back what was said unchanged: all is one segment."""
    said = run(SCRIPTED.format(block=block), packages).splitlines()[-1]
    assert json.loads(said) == [["gout"], "Rest.", 2, 0]


def block(language, number=0):
    return fenced(PAGE, language)[number]


@pytest.mark.slow
def test_the_openai_package(tiny, tmp_path):
    searches_and_answers(block("python"))
    check(*trained(block("python"), tiny, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_langchain(tiny, tmp_path):
    packages = installed(tmp_path / "packages", "langchain", "langchain-openai")
    searches_and_answers(block("py"), packages)
    check(*trained(block("py"), tiny, tmp_path / "run", packages))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_javascript(tiny, tmp_path):
    done = subprocess.run(["npm", "install", "--prefix", tmp_path, "openai"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"left out: openai can't be installed here ({done.stderr.strip()[-200:]})")
    (tmp_path / "agent.mjs").write_text(block("js"))
    player = f"recorded(command('node {tmp_path}/agent.mjs'))"
    own = f"from forage.extras.gateway.own_agent import command, recorded\n\ndef get_agent():\n    return {player}"
    stats, episodes = trained(own, tiny, tmp_path / "run")
    check(stats, episodes)
    asked = {row["id"]: row["question"] for row in map(json.loads, (tiny / "data" / "train.jsonl").open())}
    assert all([search.query for search in each.searches] == [asked[each.question_id]] for each in episodes)
