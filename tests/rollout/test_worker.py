"""Which adapter a worker plays with."""

import asyncio
from types import SimpleNamespace

from forage.policy.adapters import adapter_path
from forage.rollout.run_card import write_run_card
from forage.rollout.worker import load_newest
from tests.factories import RUN_CARD


def test_before_anything_is_published_the_adapter_of_the_runs_start_is_played(tmp_path):
    """Not one that was added to the policy since: the run has not begun with that."""
    policy, run_dir = tmp_path / "policy", tmp_path / "run"
    for version in (0, 1):
        adapter_path(policy, version).mkdir(parents=True)
    write_run_card(run_dir, RUN_CARD)
    loaded = []

    async def load_adapter(name, folder):
        loaded.append(folder)

    rollout = SimpleNamespace(engine=SimpleNamespace(load_adapter=load_adapter), options=SimpleNamespace(policy=policy))
    asyncio.run(load_newest(rollout, run_dir))
    assert loaded == [adapter_path(policy, 0)]
