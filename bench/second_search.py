"""GRPO for questions behind a name: grpo_train.py, rewarded by the best search of an episode, however late it came.

    python -m bench.second_search --data data/second_hop_6 --policy models/warm --run-dir runs/hop --num-rollouts 16

Takes the options of grpo_train.py. It is also how to train with rewards of your own without editing grpo_rollout.py.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from forage.agent.rewards import RewardFunction, get_best_search, get_format_reward, get_found, get_telling_words
from forage.arguments import run_script
from forage.grpo.options import PRESETS, TrainOptions
from grpo_train import TOP
from grpo_train import main as train

if TYPE_CHECKING:
    from forage.agent.searcher import Searcher
    from forage.store.embedder import Embedder


def get_reward_functions(embedder: Embedder, searcher: Searcher) -> dict[str, RewardFunction]:
    return {
        "best_search": partial(get_best_search, searcher=searcher),
        "found": get_found,
        "answer": partial(get_telling_words, searcher=searcher),
        "format": get_format_reward,
    }


def main(options: TrainOptions) -> None:
    train(options, get_reward_functions)


if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, presets=PRESETS)
