"""GRPO on the tiny model as scripts of their own, for tests of several processes and of killed ones.

    python -m tests.tiny_training train [options of grpo_train.py]
    python -m tests.tiny_training play [options of grpo_rollout.py]

Rewards are those of tests/tiny.py, as the model's words are noise.
"""

import sys
from unittest import mock

import grpo_rollout
import grpo_train
from forage.agent.options import SearchOptions
from forage.arguments import run_script
from forage.engines.base import EngineOptions
from forage.grpo import reporting
from forage.grpo.options import GuardOptions, TrainOptions, UpdateOptions
from forage.optimizer import MemoryOptions
from forage.policy.adapters import adapter_path
from forage.rollout.options import RolloutOptions
from forage.runs.stats import read_stats, reproducible
from forage.sft.options import SFTOptions
from tests.options import with_options
from tests.tiny import rewards_of_tokens

TINY = ("--engine", "local", "--mode", "sparse", "--max-turn-tokens", "12", "--max-turns", "2", "--batch-size", "3",
        "--num-rollouts", "4", "--learning-rate", "0.01", "--token-budget", "600", "--eval-every", "2",
        "--on-collapse", "warn", "--report-to", "none")  # fmt: skip


def tiny_args(folder, run_dir, *more):
    """Arguments of grpo_train.py; `folder` is of tests.tiny.make_tiny."""
    return ["--data", str(folder / "data"), "--policy", str(folder / "policy"), "--run-dir", str(run_dir), *TINY, *more]


def tiny_options(tiny, run_dir, **more):
    """The same as options, three steps of it; `more` as in tests.options.with_options."""
    rollout = RolloutOptions(
        data=tiny / "data", policy=tiny / "policy", engine=EngineOptions(engine="local"), batch_size=3, num_rollouts=4,
        search=SearchOptions(mode="sparse", max_turn_tokens=12, max_turns=2),
    )  # fmt: skip
    update = UpdateOptions(learning_rate=0.01, memory=MemoryOptions(token_budget=600))
    guard = GuardOptions(on_collapse="warn")
    options = TrainOptions(rollout, update, guard=guard, run_dir=run_dir, max_steps=3, eval_every=2)
    return with_options(options, **more)


def tiny_sft(folder, output_dir, **more):
    """Options of a warm start of two steps; `folder` has the data and the policy."""
    options = SFTOptions(
        data=folder / "data", policy=folder / "policy", output_dir=output_dir, max_steps=2, eval_every=2, batch_size=2,
        eval_share=0.3, search=SearchOptions(mode="sparse"), learning_rate=0.02,
    )  # fmt: skip
    return with_options(options, **more)


def train(options, rewards=rewards_of_tokens):
    """A run in this process that draws nothing, which takes ten times as long as one of the tiny model's steps."""
    with mock.patch.object(reporting, "COMMAND", ("true",)):
        grpo_train.main(options, rewards)


def stats_of(run_dir):
    """What two runs of a seed must agree on."""
    return [reproducible(stats) for stats in read_stats(run_dir)]


def adapter_bytes(run_dir, version):
    return (adapter_path(run_dir, version) / "adapter_model.safetensors").read_bytes()


if __name__ == "__main__":
    script, options = {
        "train": (train, TrainOptions), "play": (grpo_rollout.main, grpo_rollout.Options)
    }[sys.argv.pop(1)]  # fmt: skip

    def main(options: options) -> None:
        script(options, rewards_of_tokens)

    run_script(main)
