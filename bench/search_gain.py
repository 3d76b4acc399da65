"""GRPO for the query alone: grpo_train.py, rewarded by what a search found beyond a search for the question itself.

    python -m bench.search_gain --data data --policy models/warm --run-dir runs/gain --num-rollouts 16

Takes the options of grpo_train.py. Meant for policies that were trained with --max-turns 1, whose episodes are a search
and no answer. It is also how to train with rewards of your own without editing grpo_rollout.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from forage.agent.combination import RewardFunction
from forage.agent.rewards import get_search_gain, get_search_margin
from forage.cli import run_script
from forage.grpo.options import PRESETS, TrainOptions
from grpo_train import TOP
from grpo_train import main as train

if TYPE_CHECKING:
    from forage.agent.searcher import Searcher
    from forage.store.embedder import Embedder


def get_reward_functions(embedder: Embedder, searcher: Searcher) -> dict[str, RewardFunction]:
    return {
        "gain": partial(get_search_gain, searcher=searcher),
        "margin": partial(get_search_margin, searcher=searcher),  # tells apart what ranks alike
    }


def main(options: TrainOptions) -> None:
    train(options, get_reward_functions)


if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, presets=PRESETS)
