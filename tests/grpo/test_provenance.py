"""Whether episodes are a run's own, by the digests in their adapters' names."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from forage.errors import UserError
from forage.grpo.provenance import check_sampled
from forage.policy.adapters import adapter_path, weights_digest
from tests.factories import EPISODE, RUN_CARD


def test_episodes_of_the_first_version_come_from_the_start_adapter_or_the_published_one(tmp_path):
    adapter_path(tmp_path / "policy", 1).mkdir(parents=True)
    (adapter_path(tmp_path / "policy", 1) / "adapter_model.safetensors").write_bytes(b"newer")
    run = SimpleNamespace(
        step=0, digests={"v000000": "89abcdef01234567"}, card=RUN_CARD,
        options=SimpleNamespace(run_dir=tmp_path / "run", rollout=SimpleNamespace(policy=tmp_path / "policy")),
    )  # fmt: skip
    newer = weights_digest(adapter_path(tmp_path / "policy", 1))[:8]
    for digest in ("89abcdef", RUN_CARD.adapter_weights[:8]):
        check_sampled(run, [replace(EPISODE, adapter=f"run-v000000-{digest}")])
    with pytest.raises(UserError, match="which is no adapter of this run"):
        check_sampled(run, [replace(EPISODE, adapter=f"run-v000000-{newer}")])
