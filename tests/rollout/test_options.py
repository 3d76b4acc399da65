"""The stages' defaults follow one another."""

from forage.rollout.options import RolloutOptions, made_last
from forage.rollout.play_options import PlayOptions


def test_the_warm_start_is_taken_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(RolloutOptions().policy) == str(PlayOptions().policy) == "models/policy"
    (tmp_path / "models" / "warm").mkdir(parents=True)
    assert str(made_last()) == "models/policy"  # half-made: sft_train.py writes model.json with its first adapter
    (tmp_path / "models" / "warm" / "model.json").touch()
    assert str(RolloutOptions().policy) == str(PlayOptions().policy) == "models/warm"
