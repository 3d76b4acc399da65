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

from forage.engines.served import check_root
from forage.errors import UserError
from forage.policy import serving_copy
from forage.policy.card import read_policy_card, write_policy_card
from forage.policy.creation import create_policy
from forage.policy.four_bit import packed_layers
from forage.policy.options import AdapterOptions
from forage.policy.policy import load_base
from forage.policy.served_base import Options, chosen, main, serve_base
from forage.policy.serving_copy import is_copy_of
from tests.policy.test_four_bit import as_stored_before
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
        for serve in ("auto", "bf16"):
            options = Options(policy(tmp_path / f"{base}-{serve}", tmp_path / base, False), tmp_path / "served", serve)
            assert serve_base(options) == tmp_path / base
            assert (tmp_path / "served").resolve() == tmp_path / base
    assert not list(tmp_path.glob(".*"))
    with pytest.raises(UserError, match=r"two-auto has no 4-bit base; give --serve auto, or make the policy with"):
        serve_base(Options(tmp_path / "two-auto", tmp_path / "served", "nf4"))


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
    with pytest.raises(UserError, match="--gpu-gib 0 must be over 0"):
        main(Options(made, tmp_path / "served", gpu_gib=0.0))


# The choice


def test_auto_goes_by_the_cards_memory(made, monkeypatch, tmp_path, capsys):
    """Half a GiB is too little for any server."""
    card, asked = read_policy_card(made), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen(Options(made, tmp_path), card) == "bf16"  # no card: 4 bits are of no use there
    assert chosen(Options(made, tmp_path, gpu_gib=24.0), card) == "bf16"
    assert chosen(Options(made, tmp_path, "nf4", gpu_gib=24.0), card) == "nf4"
    assert chosen(Options(made, tmp_path, gpu_gib=0.5), card) == "nf4"
    assert "--serve nf4, the smaller: no plan fits cards of 0.5 GiB" in capsys.readouterr().out

    def plan(shape, gib, work, serve, *, apart):
        asked.append((shape.layers, gib, work.precision, work.lora.rank, work.max_tokens, serve, apart))
        raise UserError("asked")

    monkeypatch.setattr("forage.policy.served_base.plan", plan)
    monkeypatch.setattr("forage.policy.served_base.card_gib", lambda: 79.1)
    chosen(Options(made, tmp_path, max_tokens=4096, apart=True), card)
    assert asked == [(2, 79.1, "nf4", 4, 4096, "auto", True)]


@pytest.mark.parametrize(("gib", "apart", "serve"), [(24.0, False, "nf4"), (24.0, True, "bf16"), (80.0, False, "bf16")])
def test_a_7b_is_served_in_what_its_card_holds(made, tmp_path, gib, apart, serve):
    """Two 4-bit copies share 24 GB; the 14.2 GiB of a bf16 copy leave too little for a trainer beside them."""
    sizes = {
        "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
        "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    }  # fmt: skip
    seven = shutil.copytree(made, tmp_path / "policy")
    config = json.loads((seven / "base" / "config.json").read_text())
    (seven / "base" / "config.json").write_text(json.dumps(config | sizes | {"head_dim": 128}))
    options = Options(seven, tmp_path / "served", gpu_gib=gib, apart=apart)
    assert chosen(options, read_policy_card(seven)) == serve


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


def test_a_copy_in_several_files_is_the_same(made, copied, tmp_path, monkeypatch):
    monkeypatch.setattr(serving_copy, "SHARD_BYTES", 20_000)
    copy = serve_base(Options(made, tmp_path / "served", "bf16"))
    shards = sorted(copy.glob("*.safetensors"))
    assert len(shards) > 3
    assert all(
        sum(t.nbytes for t in load_file(shard).values()) <= 20_000 or len(load_file(shard)) == 1 for shard in shards
    )
    one, other = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (copied, copy))
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())
    assert is_copy_of(copy, made / "base")


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
    (changed / "serving.json").write_text("{}")
    with pytest.raises(UserError, match=r"changed is damaged .* remove it, and make it again"):
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


def test_a_disk_without_room_is_told_first(made, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=40_000))
    needs = r"has 0 MiB free, but served-bf16 needs \d+; free some, or give --serve nf4"
    with pytest.raises(UserError, match=needs):
        serve_base(Options(made, tmp_path / "served", "bf16"))
    assert not os.listdir(tmp_path)


def test_a_copy_that_broke_off_leaves_nothing(made, tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(serving_copy, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        serve_base(Options(made, tmp_path / "served", "bf16"))
    assert not os.listdir(tmp_path)


# Bases of earlier versions


def test_bytes_that_were_called_bf16_are_served_as_a_copy(made, tmp_path):
    before = as_stored_before(made, tmp_path / "policy")
    copy = serve_base(Options(before, tmp_path / "served", "nf4"))
    assert copy == tmp_path / "served-nf4"
    check_root(str(copy), read_policy_card(before), "the server")
    now, again = (load_file(folder / "model.safetensors") for folder in (made / "base", copy))
    assert now.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) and tensor.dtype == again[name].dtype for name, tensor in now.items())
    one, other = (json.loads((folder / "config.json").read_text()) for folder in (made / "base", copy))
    assert one == other
    unpacked = serve_base(Options(before, tmp_path / "served", "bf16"))
    expected = serve_base(Options(made, tmp_path / "now", "bf16"))
    one, other = (load_file(folder / "model.safetensors") for folder in (unpacked, expected))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
