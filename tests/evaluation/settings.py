"""An evaluation's setting that holds no more than what altered stores ask for."""

from types import SimpleNamespace

from forage.agent.options import AgentSettings
from forage.evaluation.setting import Setting


def setting_of(store, questions, **settings):
    agent, options = AgentSettings(**{"mode": "sparse", "k": 2} | settings), SimpleNamespace(seed=0)
    setting = Setting(options, [], agent, store, [], [], False, dict, None)
    setting.__dict__["all_questions"] = list(questions)
    return setting
