"""Stage 6: evaluation. Policies, baselines and test-time strategies on held-out questions, with intervals and costs.

    python evaluate.py --data data --policy warm=models/warm trained=runs/grpo
    python evaluate.py --data data --policy runs/grpo --beside models/warm --systems single plain_rag best_of_8
    python evaluate.py --data data --policy runs/grpo --scorer models/scorer --systems single best_of_8 learned_8
    python evaluate.py --data data/scifact --policy models/merged      a test collection

Reads --data (eval.jsonl and store/ of data_prep.py, and a collection's qrels/) and policies:
folders with adapters (the newest is taken) or plain models (a base, a merged model, a hub name). Every system named in
--systems answers every question; all are compared with the first policy's first system. Samples from vLLM servers
(--urls) or in this process (--engine local). The systems learned_... choose by a scorer that
`python -m forage.evaluation.preference.train_scorer` trained (--scorer).

Writes into --output-dir: eval.json (described in forage/evaluation/summary.py), per_question.jsonl, table.md, eval.png,
episodes/<policy>/<system>.jsonl (every episode), outcomes/ (which episodes count, and what they cost), agent.json.
The rewards are those of get_reward_functions in grpo_rollout.py.
Re-run the same command to resume; with more policies, systems or questions it plays only what is new. Several processes
or machines may each play a part of the questions (--skip-questions); --parts puts their folders together.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from forage.agent.combination import MakeRewards
from forage.cli import run_script
from forage.evaluation import baselines
from forage.evaluation.options import EvaluationOptions
from forage.evaluation.scorers import LOOKS_GOOD, Oracle
from forage.evaluation.strategies.best_of_n import BestOfN
from forage.evaluation.strategies.budget_forcing import BudgetForcing
from forage.evaluation.strategies.s_star import SStar
from forage.evaluation.strategies.self_consistency import SelfConsistency
from forage.evaluation.strategies.templates import ThoughtTemplates, read_templates
from forage.evaluation.strategies.tpo import TPO
from forage.evaluation.strategies.tree_search import TreeSearch
from grpo_rollout import get_reward_functions

if TYPE_CHECKING:
    from forage.evaluation.preference.scorer import Preference
    from forage.evaluation.setting import Setting, Systems


def learned(setting: Setting) -> Preference:
    """The scorer in --scorer."""
    from forage.evaluation.preference.scorer import Preference  # here, as it loads torch

    assert setting.options.scorer is not None  # options.check has seen to it
    return Preference.load(setting.options.scorer, setting.embedder)


# The systems that --systems can name. Add your own: a line makes a strategy.
SYSTEMS: Systems = {
    "plain_rag": lambda _: baselines.plain_rag,
    "no_retrieval": lambda _: baselines.no_retrieval,
    "hyde": lambda _: baselines.hyde,
    "rewrite": lambda _: baselines.rewrite,
    "single": lambda _: baselines.single,
    "best_of_8": lambda _: BestOfN(LOOKS_GOOD, n=8),
    "best_of_16": lambda _: BestOfN(LOOKS_GOOD, n=16),
    "oracle_8": lambda setting: BestOfN(Oracle(setting.similarity), n=8),  # upper bound of any choice among 8
    "self_consistency_8": lambda _: SelfConsistency(n=8),
    "fused_8": lambda _: SelfConsistency(n=8, fuse=True),
    "budget_forcing": lambda _: BudgetForcing(),
    "forced_0": lambda _: BudgetForcing(0, 0),  # answers without thinking
    "forced_16": lambda _: BudgetForcing(16, 16, waits=6),
    "forced_32": lambda _: BudgetForcing(32, 32, waits=6),
    "forced_64": lambda _: BudgetForcing(64, 64, waits=6),
    "capped_16": lambda _: BudgetForcing(0, 16),  # an upper limit alone: no "Wait"
    "capped_32": lambda _: BudgetForcing(0, 32),
    "tpo": lambda _: TPO(LOOKS_GOOD, n=4, rounds=1),  # 8 episodes, like the others
    "s_star": lambda _: SStar(),
    "tree_search": lambda _: TreeSearch(LOOKS_GOOD),
    "learned_8": lambda setting: BestOfN(learned(setting), n=8),
    "learned_tree": lambda setting: TreeSearch(scorer := learned(setting), values=scorer),
    "learned_tpo": lambda setting: TPO(learned(setting), n=4, rounds=1),
    "learned_tpo_2x1": lambda setting: TPO(learned(setting), n=2, rounds=1),  # 4 episodes
    "learned_tpo_2x2": lambda setting: TPO(learned(setting), n=2, rounds=2),
    "learned_tpo_2x3": lambda setting: TPO(learned(setting), n=2, rounds=3),  # 8
    "learned_tpo_4x2": lambda setting: TPO(learned(setting), n=4, rounds=2),
    "learned_tpo_4x3": lambda setting: TPO(learned(setting), n=4, rounds=3),  # 16
    "learned_s_star": lambda setting: SStar(judge=learned(setting)),
    "templates": lambda setting: ThoughtTemplates(read_templates(setting.options.templates)),
}


def main(options: EvaluationOptions, make_rewards: MakeRewards = get_reward_functions) -> None:
    options.check(SYSTEMS)

    from forage.evaluation.output import keep_agent, output_folder  # after the check: these load torch
    from forage.evaluation.parts import put_together
    from forage.evaluation.player import play_all
    from forage.evaluation.policies import find_policy, open_policies, settle_agent
    from forage.evaluation.report import report
    from forage.evaluation.setting import choose_questions, open_setting
    from forage.store.opening import card_at

    questions = choose_questions(options)
    for name, source in options.sources.items():
        find_policy(name, source, "")  # what isn't there is said before anything is written
    card_at(options.place, options.data)
    with output_folder(options):
        policies = open_policies(options.sources, options.output_dir)
        agent = settle_agent(options.search, policies)
        keep_agent(agent, options.output_dir)
        put_together(options, policies)
        setting = open_setting(options, agent, questions, make_rewards)
        asyncio.run(play_all(policies, setting, SYSTEMS))
        report(policies, setting)


TOP = (
    "data", "policy", "beside", "systems", "output-dir", "eval-questions", "engine", "urls", "temperature",
    "concurrency", "seed",
)  # fmt: skip

if __name__ == "__main__":
    run_script(main, __doc__, top=TOP)
