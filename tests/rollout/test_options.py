"""The stages' defaults follow one another."""

from forage.policy.manifest import PolicyManifest, read_policy_manifest, write_policy_manifest
from forage.rollout.options import RolloutOptions, made_last
from tests.refusals import refused


def test_the_warm_start_is_taken_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(RolloutOptions().policy) == "models/policy"
    (tmp_path / "models" / "warm").mkdir(parents=True)
    assert str(made_last()) == "models/policy"  # half-made: sft_train.py writes model.json with its first adapter
    write_policy_manifest(PolicyManifest(tmp_path, "base", "base", quantized=False), tmp_path / "models" / "warm")
    assert str(RolloutOptions().policy) == "models/warm"


def test_a_damaged_card_does_not_stop_help_and_is_named_when_it_is_read(tmp_path):
    for name in ("warm", "policy"):
        write_policy_manifest(PolicyManifest(tmp_path / name, "base", "base", quantized=False), tmp_path / name)
    (tmp_path / "warm" / "model.json").write_text('{"base": ')
    assert made_last(tmp_path) == tmp_path / "warm"
    with refused(r"warm/model.json is damaged"):
        read_policy_manifest(made_last(tmp_path))
