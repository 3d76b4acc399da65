"""Stage 4: the rewards, the agent's tools, and its episodes.

Edit `get_reward_functions` to reward something else, `get_tools` to give the agent another tool besides search,
`get_agent` to train an agent of your own, and `get_hints` to tell a teacher something else.

    python grpo_rollout.py --data data --policy models/warm --run-dir runs/grpo               plays one step
    python grpo_rollout.py --data data --policy models/warm --run-dir runs/grpo --follow      plays all steps

Reads --data (questions and store from data_prep.py) and the newest adapter of --run-dir, or of --policy if there is
none. Writes episodes/<step>/<worker>.jsonl to --run-dir, one line per episode, all episodes of a question at once. With
--follow it plays whatever grpo_train.py plans, until that run finishes. Any number of workers may share the run folder;
no question is played twice. A worker reads how to play from run.json, and must have the trainer's data, policy and
rewards. Samples from vLLM servers (--urls; `make vllm-cpu` starts one) or in this process (--engine local).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from forage.agent.rewards import MakeRewards, RewardFunction, get_answer_similarity, get_format_reward, get_mrr
from forage.arguments import run_script
from forage.files import check_apart
from forage.rollout.options import RolloutOptions, WorkerOptions

if TYPE_CHECKING:
    from forage.agent.agent import Player
    from forage.agent.searcher import Searcher
    from forage.agent.tools import ToolFunction
    from forage.data.records import Question
    from forage.store.embedder import Embedder


def get_reward_functions(embedder: Embedder, searcher: Searcher) -> dict[str, RewardFunction]:
    """What an episode is rewarded for, by name: edit this. --weights gives their weights by name, as in mrr=2 format=1.

    Each function gives a number from 0 to 1 for every episode, or None where the question has no such reward.
    """
    return {
        "mrr": get_mrr,
        "answer_similarity": partial(get_answer_similarity, embedder=embedder),
        "format": get_format_reward,
    }


def get_tools() -> dict[str, ToolFunction]:
    """What the agent may call beside search, by name: edit this before the first training, which fixes its prompt.

    A tool is a function with annotated parameters that returns text; its docstring tells the policy what it does.
    """
    return {}  # such as {"plan": planner("library.jsonl")}, with planner from forage.extras.planning.tool


def get_agent() -> Player | None:
    """What plays the episodes in the place of our own loop: edit this to train an agent that you have.

    It is an async function of a question, an openai.AsyncOpenAI that asks the policy, and tools, and returns the answer
    (docs/gateway.md).
    """
    return None  # such as recorded(my_agent), with recorded from forage.extras.gateway


def get_hints(questions: Sequence[Question]) -> list[str]:
    """What only the teacher of grpo_train.py --teacher hint reads beside each question: edit this."""
    return [f"Hint: this is about {question.focus}. {question.answer}" for question in questions]


@dataclass(frozen=True)
class Options:
    """Options of a rollout."""

    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    worker: WorkerOptions = WorkerOptions()

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.rollout.check()
        reads = {"--data": self.rollout.data, "--policy": self.rollout.policy}
        check_apart("--run-dir", self.worker.run_dir, reads, nested=True)


def main(options: Options, make_rewards: MakeRewards = get_reward_functions) -> None:
    options.check()
    from forage.rollout.worker import follow_trainer, play_one_step  # after the check: it loads torch

    started = time.perf_counter()
    play = follow_trainer if options.worker.follow else play_one_step
    asyncio.run(play(options.rollout, options.worker, make_rewards))
    print(f"played in {time.perf_counter() - started:.0f} s: {options.worker.run_dir / 'episodes'}")


TOP = ("data", "policy", "run-dir", "follow", "engine", "urls", "num-rollouts", "batch-size", "temperature", "weights")

if __name__ == "__main__":
    run_script(main, __doc__, top=TOP)
