"""How the agent plays goes along into the merged model."""

import pytest

from forage.agent.options import AgentSettings, read_agent, write_agent
from merge_lora import Options, main
from tests.scripts.test_merge_lora import save_adapter, save_base


@pytest.mark.parametrize("trained", [True, False])
def test_the_merged_model_plays_as_its_policy_did(trained, tmp_path):
    base = save_base(tmp_path / "base")
    save_adapter(base, tmp_path / "run" / "adapters" / "v000003")
    if trained:
        write_agent(AgentSettings(k=7), tmp_path / "run")
    main(Options(tmp_path / "run", tmp_path / "merged", dtype="float32"))
    if trained:
        assert read_agent(tmp_path / "merged") == AgentSettings(k=7)
    else:
        assert not (tmp_path / "merged" / "agent.json").exists()
