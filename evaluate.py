"""Stage 6: evaluation. Policies, baselines and test-time strategies on held-out questions, with intervals and costs.

    python evaluate.py --data data --policy warm=models/warm trained=runs/grpo
    python evaluate.py --data data --policy runs/grpo --beside models/warm --systems single plain_rag best_of:8
    python evaluate.py --data data --policy runs/grpo --scorer models/scorer --systems single best_of:8 tree:learned
    python evaluate.py --data data/scifact --policy models/merged      a test collection
    python evaluate.py --data data --policy warm=models/warm trained=runs/grpo --lab     does it search, or remember?

Reads --data (eval.jsonl and store/ from data_prep.py, and qrels/ of a test collection) and policies: folders with
adapters (the newest is used) or plain models (a base, a merged model, a hub name). Every system in --systems answers
every question; all are compared with the first policy's first system. A system whose last parameter is `learned`
chooses by the --scorer that `python -m forage.extras.testtime.train_scorer` trained. Samples from vLLM servers (--urls)
or in this process (--engine local).

Writes to --output-dir: eval.json (described in forage/evaluation/report.py), per_question.jsonl, table.md,
episodes/<policy>/<system>/ (every episode), outcomes/ (which episodes count, and what they cost), agent.json,
evaluation.json and, with --lab, lab.md and lab.json. The rewards are those of get_reward_functions in grpo_rollout.py.
Re-run the same command to resume. If you add policies, systems or questions, only what is new is played. Several
processes or machines with the same --output-dir share the questions.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from forage.agent.rewards import MakeRewards
from forage.agent.tools import own_agent
from forage.arguments import run_script
from forage.evaluation import baselines
from forage.evaluation.altered import ALTERATIONS, Altered
from forage.evaluation.options import MANIFEST, EvaluationOptions, Systems
from forage.extras.testtime.best_of import BestOf, agreed
from forage.extras.testtime.s1 import BudgetForcing
from forage.extras.testtime.s_star import SStar
from forage.extras.testtime.scorers import Oracle, Scorer, looks_good
from forage.extras.testtime.tpo import TPO
from forage.extras.testtime.tree import TreeSearch
from grpo_rollout import get_reward_functions

if TYPE_CHECKING:
    from forage.evaluation.setting import Setting


def scorer_of(setting: Setting, learned: bool) -> Scorer:
    """The learned scorer in --scorer, or the written one."""
    from forage.extras.testtime.preference import Preference  # here, as it loads torch

    scorer = setting.options.scorer
    return Preference.load(scorer, setting.embedder) if learned and scorer else looks_good


# The systems that --systems can name. Add your own: a line makes a strategy of a setting and the name's parameters.
SYSTEMS: Systems = {
    "plain_rag": lambda _: baselines.plain_rag,
    "no_retrieval": lambda _: baselines.no_retrieval,
    "hyde": lambda _: baselines.hyde,
    "rewrite": lambda _: baselines.rewrite,
    "single": lambda _: baselines.single,
    "own_agent": lambda _: partial(baselines.played_by, own_agent()),
    "best_of": lambda setting, n=8, *, learned=False: BestOf(scorer_of(setting, learned), n),
    "oracle": lambda setting, n=8: BestOf(Oracle(setting.similarity), n),  # upper bound of any choice among n
    "self_consistency": lambda _, n=8: BestOf(agreed, n),
    "s1": lambda _, least=32, most=None: BudgetForcing(least, least if most is None else most),
    "tpo": lambda setting, n=4, rounds=1, *, learned=False: TPO(scorer_of(setting, learned), n, rounds),
    "s_star": lambda _, n=4, rounds=1: SStar(n, rounds),
    "tree": lambda setting, rollouts=8, *, learned=False: TreeSearch(scorer_of(setting, learned), learned, rollouts),
    **{name: partial(Altered, alter) for name, alter in ALTERATIONS.items()},  # on altered stores
}
LAB = ("single", *ALTERATIONS, "plain_rag", "no_retrieval")  # the systems that --lab plays


def main(options: EvaluationOptions, make_rewards: MakeRewards = get_reward_functions) -> None:
    options = replace(options, systems=LAB) if options.lab else options
    options.check(SYSTEMS)

    from forage.evaluation.lab import lab
    from forage.evaluation.player import play  # after the check: these load torch
    from forage.evaluation.report import report
    from forage.evaluation.setting import open_setting

    setting = open_setting(options, make_rewards)
    asyncio.run(play(setting, SYSTEMS))
    systems = report(setting)
    if options.lab:
        lab(setting, systems)


TOP = (
    "data", "policy", "beside", "systems", "lab", "output-dir", "eval-questions", "engine", "urls", "temperature",
    "concurrency", "seed",
)  # fmt: skip

if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, begun=lambda options: options.output_dir / MANIFEST)
