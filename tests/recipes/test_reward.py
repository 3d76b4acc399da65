"""docs/recipes/reward.md: its rewards in a run of its own command, resumed, and at the bound."""

import json

import pytest

from forage.agent.episode import read_episodes
from forage.runs.stats import read_stats
from tests.extras.questions.chat_server import chat_server
from tests.recipes.run import calls_of, module_of, run
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("no_plots")
QUICK = ("--engine", "local", "--max-turn-tokens", "8", "--mode", "sparse", "--token-budget", "600", "--batch-size",
         "2", "--num-rollouts", "2", "--max-turns", "2", "--on-collapse", "warn")  # fmt: skip


@pytest.fixture(autouse=True)
def data(tiny, here):
    (here / "data").symlink_to(tiny / "data")


def page(chat, *changes):
    rewards = module_of("reward.md", ("http://localhost:11434/v1", chat.url), *changes)
    return rewards["get_reward_functions"]


def grade(prompt, number):
    return "9" if prompt.endswith("Rest.") else "2"


def test_the_command_and_what_is_resumed(here):
    [command] = calls_of("reward.md")
    with chat_server(grade) as chat:
        run(command, *QUICK, "--max-steps", "1", make_rewards=page(chat))
        asked = len(chat.asked)
        assert asked >= 1  # about "yes"
        rows = map(json.loads, (here / "runs/judged.jsonl").read_text().splitlines())
        assert {row["prompt"] for row in rows if "score" in row} == set(chat.asked)
    with chat_server(grade) as moved:  # the same run goes on with another address and bound
        run(command, *QUICK, "--max-steps", "2", make_rewards=page(moved, ("5000", "6000")))
        assert not set(moved.asked) & set(chat.asked)
    episodes = [e for path in sorted(here.glob("runs/judged/episodes/*/*.jsonl*")) for e in read_episodes(path)]
    assert len(episodes) >= 8
    assert all(list(e.rewards) == ["mrr", "judge", "format"] for e in episodes)
    mean = episodes[0]
    assert mean.reward == pytest.approx((mean.rewards["mrr"] + 2 * mean.rewards["judge"] + mean.rewards["format"]) / 4)
    assert [stats.step for stats in read_stats(here / "runs/judged")] == [0, 1]
    with chat_server(grade) as other, refused(r"another rewards\.judge"):
        run(command, *QUICK, make_rewards=page(other, ("qwen2.5:7b", "qwen2.5:14b")))


def test_a_judge_that_is_not_there_stops_the_run_before_it_plays(here):
    [command] = calls_of("reward.md")
    line = r"reward 'judge': .* \(no qwen\); check the judge's url"
    with chat_server(lambda *_: (404, {"error": "no qwen"})) as chat, refused(line):
        run(command, *QUICK, make_rewards=page(chat))
    assert not list(here.glob("runs/judged/episodes/*/*.jsonl"))
