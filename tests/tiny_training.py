"""GRPO on the tiny model as scripts of their own, for tests of several processes and of killed ones.

    python -m tests.tiny_training train [options of grpo_train.py]
    python -m tests.tiny_training play [options of grpo_rollout.py]

Rewards are those of tests/tiny.py, as the model's words are noise.
"""

import sys

import grpo_rollout
import grpo_train
from forage.cli import run_script
from forage.grpo.options import TrainOptions
from forage.runs import plots
from tests.tiny import rewards_of_tokens

TINY = ("--engine", "local", "--mode", "sparse", "--max-turn-tokens", "12", "--max-turns", "2", "--batch-size", "3",
        "--num-rollouts", "4", "--learning-rate", "0.01", "--token-budget", "600", "--eval-every", "2",
        "--on-collapse", "warn", "--min-entropy", "0")  # fmt: skip


def tiny_args(folder, run_dir, *more):
    """Arguments of grpo_train.py; `folder` is of tests.tiny.make_tiny."""
    return ["--data", str(folder / "data"), "--policy", str(folder / "policy"), "--run-dir", str(run_dir), *TINY, *more]


if __name__ == "__main__":
    script, options = {
        "train": (grpo_train.main, TrainOptions), "play": (grpo_rollout.main, grpo_rollout.Options)
    }[sys.argv.pop(1)]  # fmt: skip

    # One of the three plots, as drawing takes ten times as long as a step.
    plots.FIGURES = {"rewards.png": plots.FIGURES["rewards.png"]}

    def main(options: options) -> None:
        script(options, rewards_of_tokens)

    run_script(main)
