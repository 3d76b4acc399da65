"""Stage 4: the rewards, and the agent's episodes. Edit `get_reward_functions` to reward something else.

    python grpo_rollout.py --data data --policy models/warm --run-dir runs/grpo                  one step's episodes
    python grpo_rollout.py --data data --policy models/warm --run-dir runs/grpo --follow         as a service

Reads: --data (questions and store of data_prep.py) and the newest adapter of --run-dir, else of --policy. Writes:
episodes/<step>/<worker>.jsonl in --run-dir, a line an episode, all episodes of a question at once. With --follow it
plays what grpo_train.py plans, with each adapter that comes, until that run is finished; any number of workers may
share the run folder, and no question is played twice. Samples through vLLM servers (--urls; start one by
`make vllm-cpu`) or in this process (--engine local).
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from forage.agent.combination import MakeRewards, RewardFunction
from forage.agent.rewards import get_answer_similarity, get_format_reward, get_mrr
from forage.cli import run_script
from forage.heartbeat import beat
from forage.policy.adapters import versions
from forage.rollout.options import RolloutOptions
from forage.rollout.rollout import FINISHED, load_newest, next_plan, open_rollout, plan_of, play_plan
from forage.store.embedder import Embedder


def get_reward_functions(embedder: Embedder) -> dict[str, RewardFunction]:
    """What an episode is rewarded for, by name: edit this. Their weights are --weights, in this order."""
    return {
        "mrr": get_mrr,
        "answer_similarity": partial(get_answer_similarity, embedder=embedder),  # or get_token_f1
        "format": get_format_reward,
    }


@dataclass(frozen=True)
class Options:
    """One step's episodes, or the service."""

    rollout: RolloutOptions = field(default_factory=RolloutOptions)
    run_dir: Path = Path("runs/grpo")
    """The run folder."""
    follow: bool = False
    """Play what the trainer plans, until its run is finished."""
    worker: str = field(default_factory=socket.gethostname)
    """Name of this worker, unlike any other's; a restarted worker goes on under its old one."""
    max_staleness: int = 0
    """Steps that sampling may run ahead of the newest adapter."""
    poll: float = 1.0
    """Seconds between looks at the run folder."""


async def main_async(options: Options, rewards: MakeRewards) -> None:
    async with open_rollout(options.rollout, rewards) as rollout:
        if not options.follow:
            step = versions(options.run_dir)[-1] if versions(options.run_dir) else 0
            await load_newest(rollout, options.run_dir)
            plan = plan_of(options.rollout, list(rollout.by_id["train"]), step)
            await play_plan(rollout, options.run_dir, plan, options.worker, poll=options.poll)
            return
        done: set[str] = set()
        if (options.run_dir / FINISHED).exists():
            print(f"{options.run_dir} is finished; to go on with it, start grpo_train.py with more --max-steps first")
        while not (options.run_dir / FINISHED).exists():
            beat()
            plan_there = next_plan(options.run_dir, options.max_staleness, done)
            if plan_there is None:
                await asyncio.sleep(options.poll)
                continue
            await load_newest(rollout, options.run_dir)
            await play_plan(rollout, options.run_dir, plan_there, options.worker, poll=options.poll)


def main(options: Options, rewards: MakeRewards = get_reward_functions) -> None:
    started = time.perf_counter()
    asyncio.run(main_async(options, rewards))
    print(f"played in {time.perf_counter() - started:.0f} s: {options.run_dir / 'episodes'}")


if __name__ == "__main__":
    run_script(main, description=__doc__)
