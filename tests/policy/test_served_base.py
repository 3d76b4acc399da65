"""The link leads to what a server can serve: the base that is trained on, or an exact copy of it."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from forage.policy.manifest import AdapterOptions, read_policy_manifest, write_policy_manifest
from forage.policy.policy import create_policy, load_base
from forage.policy.served_base import Options, serve_base
from tests.refusals import refused
from tests.tiny import make_base


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
    with refused(r"policy-two has no 4-bit base; leave it out, or make the policy with"):
        serve_base(Options(tmp_path / "policy-two", tmp_path / "served", "nf4"))


def test_a_4_bit_base_is_served_out_of_the_policy(made, tmp_path):
    shutil.copytree(made, tmp_path / "a" / "policy")
    link = tmp_path / "a" / "served"
    assert serve_base(Options(tmp_path / "a" / "policy", link, "nf4")) == tmp_path / "a" / "policy" / "base"
    assert sorted(path.name for path in link.parent.iterdir()) == ["policy", "served"]
    (tmp_path / "a").rename(tmp_path / "b")  # as when a volume is mounted elsewhere
    assert (tmp_path / "b" / "served").resolve() == tmp_path / "b" / "policy" / "base"


# The copy in bf16


@pytest.fixture(scope="module")
def copied(made, tmp_path_factory):
    link = tmp_path_factory.mktemp("copied") / "served"
    copy = serve_base(Options(made, link, "bf16"))
    assert (copy, link.resolve()) == (link.with_name("served-bf16"), copy.resolve())
    return copy


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_copy_is_what_the_trainer_multiplies_by(made, tmp_path, dtype):
    """The weights of the unpacked base, which test_four_bit.py compares with what its layers multiply by."""
    of_dtype = shutil.copytree(made, tmp_path / "policy")
    write_policy_manifest(manifest := replace(read_policy_manifest(of_dtype), dtype=dtype), of_dtype)
    copy = serve_base(Options(of_dtype, tmp_path / "served", "bf16"))
    assert copy == tmp_path / {"bfloat16": "served-bf16", "float32": "served-fp32"}[dtype]
    served, kind = AutoModelForCausalLM.from_pretrained(copy), getattr(torch, dtype)
    assert served.dtype == kind
    unpacked = load_base(manifest, dequantize=True).state_dict()
    assert served.state_dict().keys() == unpacked.keys()
    assert all(torch.equal(weight, unpacked[name]) for name, weight in served.state_dict().items())
    full = AutoModelForCausalLM.from_pretrained(made.parent / "full", dtype=kind)
    name = "model.layers.1.mlp.down_proj.weight"
    assert not torch.equal(full.state_dict()[name], served.state_dict()[name])


def test_a_second_call_keeps_a_copy_and_one_of_another_base_is_replaced(made, copied, tmp_path):
    link = tmp_path / "served"
    copy = Path(shutil.copytree(copied, tmp_path / "served-bf16"))
    before = {path.name: path.stat().st_ino for path in copy.iterdir()}
    for _ in range(2):
        assert serve_base(Options(made, link, "bf16")) == copy
        assert {path.name: path.stat().st_ino for path in copy.iterdir()} == before
    serving = json.loads((copy / "serving.json").read_text())
    (copy / "serving.json").write_text(json.dumps(serving | {"made_from": "another"}))
    (tmp_path / ".served-bf16.abcd1234.forage").mkdir()  # left by a killed process
    serve_base(Options(made, link, "bf16"))
    assert json.loads((copy / "serving.json").read_text()) == serving
    assert {path.name: path.stat().st_ino for path in copy.iterdir()} != before
    assert sorted(os.listdir(tmp_path)) == ["served", "served-bf16"]
