"""The link leads to what a server can serve: the base that is trained on, or an exact copy of it."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from forage.engines.server_checks import check_root
from forage.errors import UserError
from forage.policy.card import AdapterOptions, read_policy_card, write_policy_card
from forage.policy.policy import create_policy, load_base, packed_layers
from forage.policy.served_base import Options, serve_base
from tests.tiny import make_base, make_model, make_tokenizer


def policy(folder, base, quantized):
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(json.dumps({"base": str(base), "full_base": "full", "quantized": quantized}))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A policy over a 4-bit base."""
    folder = tmp_path_factory.mktemp("made")
    make_base(folder / "full")
    create_policy(str(folder / "full"), folder / "policy", AdapterOptions(r=4), quantize=True, dtype="bfloat16")
    return folder / "policy"


# The link


def test_a_base_that_is_not_in_4_bits_is_served_as_it_is(tmp_path):
    for base in ("one", "two"):  # the link is led elsewhere
        (tmp_path / base).mkdir()
        options = Options(policy(tmp_path / f"policy-{base}", tmp_path / base, False), tmp_path / "served")
        assert serve_base(options) == tmp_path / base
        assert (tmp_path / "served").resolve() == tmp_path / base
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(UserError, match=r"policy-two has no 4-bit base; leave it out, or make the policy with"):
        serve_base(Options(tmp_path / "policy-two", tmp_path / "served", "nf4"))


def test_a_4_bit_base_is_served_out_of_the_policy(made, tmp_path):
    shutil.copytree(made, tmp_path / "a" / "policy")
    link = tmp_path / "a" / "served"
    assert serve_base(Options(tmp_path / "a" / "policy", link, "nf4")) == tmp_path / "a" / "policy" / "base"
    assert sorted(path.name for path in link.parent.iterdir()) == ["policy", "served"]
    (tmp_path / "a").rename(tmp_path / "b")  # as when a volume is mounted elsewhere
    assert (tmp_path / "b" / "served").resolve() == tmp_path / "b" / "policy" / "base"


def test_no_policy_and_no_link_are_told(made, tmp_path):
    with pytest.raises(UserError, match=r"make a policy with create_lora_model\.py"):
        serve_base(Options(tmp_path / "none", tmp_path / "served"))
    (tmp_path / "taken").mkdir()
    with pytest.raises(UserError, match=r"taken is there already and no link"):
        serve_base(Options(made, tmp_path / "taken"))


# The copy in bf16


@pytest.fixture(scope="module")
def copied(made, tmp_path_factory):
    link = tmp_path_factory.mktemp("copied") / "served"
    copy = serve_base(Options(made, link, "bf16"))
    assert (copy, link.resolve()) == (link.with_name("served-bf16"), copy.resolve())
    return copy


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_copy_is_what_the_trainer_multiplies_by(made, tmp_path, dtype):
    """A product with the identity says which numbers a layer multiplies by, as others are times 0."""
    of_dtype = shutil.copytree(made, tmp_path / "policy")
    write_policy_card(card := replace(read_policy_card(of_dtype), dtype=dtype), of_dtype)
    copy = serve_base(Options(of_dtype, tmp_path / "served", "bf16"))
    assert copy == tmp_path / {"bfloat16": "served-bf16", "float32": "served-fp32"}[dtype]
    trained, kind = load_base(card), getattr(torch, dtype)
    served = AutoModelForCausalLM.from_pretrained(copy)
    assert served.dtype == kind
    packed = list(packed_layers(trained))
    assert len(packed) == 2 * 7
    for name, layer in trained.named_modules():
        if layer in packed:
            eye_II = torch.eye(layer.in_features, dtype=kind)
            for training in (False, True):  # two ways through bitsandbytes
                weight_IO = layer(eye_II.clone().requires_grad_(training))
                assert torch.equal(weight_IO.T, served.get_submodule(name).weight)
    unpacked = load_base(card, dequantize=True).state_dict()
    assert served.state_dict().keys() == unpacked.keys()
    assert all(torch.equal(weight, unpacked[name]) for name, weight in served.state_dict().items())
    full = AutoModelForCausalLM.from_pretrained(made.parent / "full", dtype=kind)
    name = "model.layers.1.mlp.down_proj.weight"
    assert not torch.equal(full.state_dict()[name], served.state_dict()[name])


def test_a_copy_is_a_whole_model_and_no_longer_a_quantised_one(made, copied):
    config = json.loads((copied / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "bfloat16"
    there = sorted(path.name for path in (made / "base").iterdir())
    assert sorted(path.name for path in copied.iterdir()) == sorted([*there, "serving.json"])
    assert "generation_config.json" in there
    words = "What is gout?"
    assert AutoTokenizer.from_pretrained(copied)(words) == make_tokenizer()(words)
    assert not any("absmax" in name for name in load_file(copied / "model.safetensors"))


def test_a_copy_passes_for_its_own_base_only(made, copied, tmp_path):
    card = read_policy_card(made)
    check_root(str(copied), card, "the server")
    check_root(str(copied.with_name("served")), card, "the server")  # by the link
    make_model(seed=1).save_pretrained(tmp_path / "full")
    make_tokenizer().save_pretrained(tmp_path / "full")
    create_policy(str(tmp_path / "full"), tmp_path / "policy", AdapterOptions(r=4), quantize=True, dtype="bfloat16")
    for root, asked in ((copied, tmp_path / "policy"), (made.parent / "full", made)):
        with pytest.raises(
            UserError, match=f"the server serves {root}, not {asked / 'base'}; start it with that model"
        ):
            check_root(str(root), read_policy_card(asked), "the server")
    changed = shutil.copytree(copied, tmp_path / "changed")
    shutil.copy(tmp_path / "full" / "model.safetensors", changed)  # another model under the copy's card
    with pytest.raises(UserError, match="the server serves"):
        check_root(str(changed), card, "the server")
    (changed / "serving.json").write_text("{")
    with pytest.raises(UserError, match=r"serving\.json is damaged .* remove .*changed, and make it again"):
        check_root(str(changed), card, "the server")


def test_a_second_call_keeps_a_copy_and_one_of_another_base_is_replaced(made, copied, tmp_path):
    link = tmp_path / "served"
    copy = Path(shutil.copytree(copied, tmp_path / "served-bf16"))
    before = {path.name: path.stat().st_ino for path in copy.iterdir()}
    for _ in range(2):
        assert serve_base(Options(made, link, "bf16")) == copy
        assert {path.name: path.stat().st_ino for path in copy.iterdir()} == before
    serving = json.loads((copy / "serving.json").read_text())
    (copy / "serving.json").write_text(json.dumps(serving | {"made_from": "another"}))
    (tmp_path / ".served-bf16.abcd1234").mkdir()  # left by a killed process
    serve_base(Options(made, link, "bf16"))
    assert json.loads((copy / "serving.json").read_text()) == serving
    assert {path.name: path.stat().st_ino for path in copy.iterdir()} != before
    assert sorted(os.listdir(tmp_path)) == ["served", "served-bf16"]


def test_what_is_no_copy_is_not_replaced(made, tmp_path):
    (tmp_path / "served-bf16").mkdir()
    (tmp_path / "served-bf16" / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"served-bf16 was not made by this script \(it has no serving\.json\)"):
        serve_base(Options(made, tmp_path / "served", "bf16"))
    assert sorted(os.listdir(tmp_path)) == ["served-bf16"]


def test_a_copy_that_broke_off_leaves_nothing(made, tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full)
    with pytest.raises(OSError, match="No space left"):
        serve_base(Options(made, tmp_path / "served", "bf16"))
    assert not os.listdir(tmp_path)
