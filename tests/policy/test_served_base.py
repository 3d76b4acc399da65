"""The link to the served base points to the base that is trained on, even after the folder is moved."""

import json

import pytest

from forage.errors import UserError
from forage.policy.served_base import link_base


def policy(folder, base, quantized):
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(json.dumps({"base": str(base), "full_base": "full", "quantized": quantized}))
    return folder


def test_a_4_bit_base_is_served_out_of_the_policy(tmp_path):
    made = policy(tmp_path / "a" / "models" / "policy", "base", True)
    (made / "base").mkdir()
    link = tmp_path / "a" / "models" / "served"
    assert link_base(made, link) == made / "base"
    assert link.resolve() == made / "base"
    (tmp_path / "a").rename(tmp_path / "b")  # as when a volume is mounted elsewhere
    assert (tmp_path / "b" / "models" / "served").resolve() == tmp_path / "b" / "models" / "policy" / "base"


def test_a_link_is_led_elsewhere(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    for base in ("one", "two"):
        link_base(policy(tmp_path / f"policy_{base}", tmp_path / base, False), tmp_path / "served")
        assert (tmp_path / "served").resolve() == tmp_path / base
    assert not list(tmp_path.glob(".*"))


def test_no_policy_is_told(tmp_path):
    with pytest.raises(UserError, match=r"make a policy with create_lora_model\.py"):
        link_base(tmp_path / "none", tmp_path / "served")
