"""Stage 5: GRPO. Play episodes, compute their advantages, update the adapter, publish it, repeat.

    python grpo_train.py --data data --policy models/warm --run-dir runs/a                       plays its own episodes
    python grpo_train.py --data data --policy models/warm --run-dir runs/a --rollouts service    workers play them
    torchrun --nproc-per-node 8 grpo_train.py ... --sharding fsdp2                               several GPUs

Reads --data (from data_prep.py) and --policy (from sft_train.py or create_lora_model.py). Writes to --run-dir, which is
a policy folder too, so merge_lora.py can read it: adapters/v000000, v000001, ... (the last is the result), agent.json,
run.json (what workers and later starts must agree on), plans/, episodes/ (every episode played),
training_stats_<step>.json, evaluations.json, rewards.png, reward_distribution.png, training.png, run.html, code.diff
and environment.json (from the start), state/, stale/ (what a resumed run could not use). To resume a killed run, give
the same command or just --run-dir; the result is the same as without the interruption.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

from forage.agent.options import AGENT_FILE, write_agent
from forage.agent.rewards import MEASURED, MakeRewards
from forage.arguments import run_script
from forage.grpo.options import PRESETS, TrainOptions
from forage.processes import first_alone, is_first, leave_processes
from grpo_rollout import get_reward_functions


def main(
    options: TrainOptions, make_rewards: MakeRewards = get_reward_functions, open_play: Callable[..., Any] | None = None
) -> None:  # fmt: skip
    """`open_play` opens what plays, in the place of what the options say."""
    options.check()
    settings = options.rollout.search.settle(options.run_dir, options.rollout.policy)

    from forage.data.splits import read_splits
    from forage.grpo.gain import open_gains
    from forage.grpo.own_server import own_server  # after the checks: these load torch
    from forage.grpo.players import open_play as play_as_asked
    from forage.grpo.resume import agree_on_run
    from forage.grpo.teacher import open_teacher
    from forage.grpo.training import open_learner, train
    from forage.policy.manifest import read_policy_manifest, write_policy_manifest
    from forage.rollout.agreement import adapter_of, read_run
    from forage.rollout.worker import FINISHED
    from forage.runs.run_folder import run_folder
    from forage.store.opening import manifest_at

    rollout, run_dir = options.rollout, options.run_dir
    policy_manifest = read_policy_manifest(rollout.policy)
    manifest_at(rollout.address, rollout.data)  # before anything is written
    questions, known = read_splits(rollout.data), read_run(run_dir)
    start = adapter_of(rollout.policy, known, run_dir)
    first = is_first()  # of the processes that torchrun started; it alone decides and writes, all of them train
    if first:
        print(f"policy: {rollout.policy}")
        if not known and not (rollout.policy / AGENT_FILE).is_file():
            print(f"note: {rollout.policy} has had no warm start; a small model must be shown the protocol first: "
                  f"python sft_train.py --data {rollout.data} --policy {rollout.policy}")  # fmt: skip
    with ExitStack() as opened:
        if first:
            opened.enter_context(run_folder(run_dir))
            agreed = agree_on_run(options, settings, make_rewards)
            (run_dir / FINISHED).unlink(missing_ok=True)  # before a model is loaded: workers end where it is
            write_policy_manifest(policy_manifest, run_dir)
            write_agent(settings, run_dir)
            # Before this process takes memory of the server's GPU.
            options = opened.enter_context(own_server(options, policy_manifest, start, settings.max_tokens))
        memory = options.update.memory.on_this_device(settings.max_tokens, quantized=policy_manifest.quantized)
        options = replace(options, update=replace(options.update, memory=memory))
        learner = open_learner(options, policy_manifest, start)
        name, asked = options.update.teacher, [*questions["train"].values()]
        teacher = open_teacher(name, rollout, policy_manifest, settings, asked, learner) if name else None
        manifest = first_alone(lambda: agreed)
        measured = MEASURED in manifest.weights
        gains = open_gains(manifest.weights, policy_manifest, settings, questions) if measured else None
        with closing(
            (open_play or play_as_asked)(options, settings, make_rewards, questions, manifest.embedder)
        ) as play:
            train(options, settings.max_tokens, learner, play, manifest, questions, teacher, gains)
        first_alone((run_dir / FINISHED).touch)
    leave_processes()


TOP = (
    "data", "policy", "run-dir", "max-steps", "learning-rate", "batch-size", "num-rollouts", "beta", "combine",
    "weights", "sharding", "task",
)  # fmt: skip

if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, presets=PRESETS, begun=lambda options: options.run_dir / "run.json")
