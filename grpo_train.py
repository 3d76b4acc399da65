"""Stage 5: GRPO. Play episodes, compute their advantages, update the adapter, publish it, repeat.

    python grpo_train.py --data data --policy models/warm --run-dir runs/a                       plays its own episodes
    python grpo_train.py --data data --policy models/warm --run-dir runs/a --rollouts service    workers play them
    torchrun --nproc-per-node 8 grpo_train.py ... --sharding fsdp2                               several GPUs

Reads --data (of data_prep.py) and --policy (of sft_train.py or create_lora_model.py). Writes into --run-dir, which is a
policy folder too, so merge_lora.py reads it: adapters/v000000, v000001, ... (the last is the result), agent.json,
run.json (what workers and later starts must agree on), plans/, episodes/ (every episode it played),
training_stats_<step>.json, evaluations.json, rewards.png, reward_distribution.png, training.png, report.html,
browser.html, config.json, code.diff, state/. Re-run the same command to resume a killed run; it ends with the same
result.
"""

from __future__ import annotations

from contextlib import nullcontext

from forage.agent.combination import MakeRewards
from forage.agent.options import AGENT_FILE, write_agent
from forage.cli import run_script
from forage.grpo.options import FREE, TrainOptions
from forage.grpo.presets import PRESETS
from forage.processes import is_first
from grpo_rollout import get_reward_functions


def main(options: TrainOptions, make_rewards: MakeRewards = get_reward_functions) -> None:
    options.check()
    settings = options.rollout.search.settle(options.run_dir, options.rollout.policy)
    options.check_with(settings)

    from forage.grpo.agreement import agree  # after the checks: these load torch
    from forage.grpo.players import open_players
    from forage.grpo.training import fit_memory, open_learner, train
    from forage.policy.card import read_policy_card, write_policy_card
    from forage.rollout.run_card import adapter_of, read_run_card
    from forage.rollout.worker import FINISHED
    from forage.runs.run_folder import run_folder
    from forage.store.opening import card_at

    card = read_policy_card(options.rollout.policy)
    card_at(options.rollout.place, options.rollout.data)  # before anything is written
    known = read_run_card(options.run_dir)
    start = adapter_of(options.rollout.policy, known)
    lead = is_first()  # the first process alone decides and writes; all of them play and train
    if lead:
        print(f"policy: {options.rollout.policy}")
    if lead and not known and not (options.rollout.policy / AGENT_FILE).is_file():
        print(f"note: {options.rollout.policy} has had no warm start; a small model must be shown the protocol first: "
              f"python sft_train.py --data {options.rollout.data} --policy {options.rollout.policy}")  # fmt: skip
    free = (*FREE, "rollout.weights") if options.override_rewards else FREE
    with run_folder(options.run_dir, options, free) if lead else nullcontext():
        run = agree(options, settings, make_rewards) if lead else None
        if lead:
            (options.run_dir / FINISHED).unlink(missing_ok=True)  # before a model is loaded: workers end where it is
            write_policy_card(card, options.run_dir)
            write_agent(settings, options.run_dir)
        options = fit_memory(options, card, start, settings)
        learner = open_learner(options, card, start)
        run = learner.broadcast(run)
        with open_players(options, settings, make_rewards, run.embedder, learner) as play:
            train(options, settings, learner, play, run)
        if lead:
            (options.run_dir / FINISHED).touch()


TOP = (
    "data", "policy", "run-dir", "max-steps", "learning-rate", "batch-size", "num-rollouts", "beta", "combine",
    "weights", "sharding", "task",
)  # fmt: skip

if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, presets=PRESETS)
