"""A 4-bit base and its adapter, made from tiny models."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from create_lora_model import Options, main
from forage.policy.manifest import AdapterOptions, read_policy_manifest
from forage.policy.policy import load_tokenizer
from tests.factories import tiny_llama
from tests.refusals import refused


@dataclass(frozen=True)
class Created:
    """A 4-bit policy folder and its full base."""

    policy: Path
    full: Path


@pytest.fixture(scope="module")
def created(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("created")
    shutil.copytree(tiny, folder / "tiny")
    main(Options(base_model=str(folder / "tiny"), output_dir=folder / "policy", quantize=True))
    return Created(folder / "policy", folder / "tiny")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("tiny") / "model"
    torch.manual_seed(0)
    tiny_llama().save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(folder)
    return folder


def test_the_base_is_nf4(created):
    config = json.loads((created.policy / "base" / "config.json").read_text())["quantization_config"]
    assert (config["bnb_4bit_quant_type"], config["bnb_4bit_use_double_quant"]) == ("nf4", True)
    assert config["bnb_4bit_quant_storage"] == "uint8"  # vLLM reads nothing else
    assert load_tokenizer(read_policy_manifest(created.policy)).chat_template


@pytest.mark.parametrize("gpu", [False, True])
def test_four_bits_are_the_default_with_a_gpu_alone(tiny, tmp_path, monkeypatch, gpu):
    asked = []

    def create(base, folder, adapter, *, quantize, dtype):
        asked.append(quantize)
        return ""

    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("forage.policy.policy.create_policy", create)
    for chosen in (None, True, False):
        main(Options(base_model=str(tiny), output_dir=tmp_path / str(chosen), quantize=chosen))
    assert asked == [gpu, True, False]


def test_without_quantisation_the_base_stays_where_it_is(tiny, tmp_path, capsys):
    output = tmp_path / "policy"
    adapter = AdapterOptions(r=4, alpha=8, rslora=True, dora=True)
    main(Options(base_model=str(tiny), output_dir=output, quantize=False, adapter=adapter))
    assert sorted(path.name for path in output.iterdir()) == ["adapters", "model.json"]
    assert json.loads((output / "model.json").read_text())["base"] == str(tiny.resolve())
    config = json.loads((output / "adapters" / "v000000" / "adapter_config.json").read_text())
    assert (config["r"], config["use_rslora"], config["use_dora"]) == (4, True, True)
    assert "lm_head" not in config["target_modules"]
    assert "parameters (" in capsys.readouterr().out


def test_a_layer_that_the_base_lacks_is_told_in_one_line_and_leaves_nothing(tiny, tmp_path):
    adapter = AdapterOptions(target_modules=("no_such_layer",))
    with refused("no_such_layer"):
        main(Options(base_model=str(tiny), output_dir=tmp_path / "policy", quantize=False, adapter=adapter))
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_with_a_base_is_said_before_it_is_loaded(tiny, tmp_path, capsys):
    """As with Gemma 2, whose logits are capped, and a template that has no special token at a turn's end."""
    base = shutil.copytree(tiny, tmp_path / "base")
    template = base / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_end|>", "."))
    config = json.loads((base / "config.json").read_text())
    more = {"final_logit_softcapping": 30.0, "max_position_embeddings": 512}
    (base / "config.json").write_text(json.dumps(config | more))
    with refused("does not end turns with a special token"):
        main(Options(base_model=str(base), output_dir=tmp_path / "policy"))
    assert "--max-tokens 2048 is more than the 512" in capsys.readouterr().out
    shutil.copytree(tiny, tmp_path / "mute", ignore=shutil.ignore_patterns("token*", "chat*"))
    with refused("mute has no tokenizer that can be loaded"):
        main(Options(base_model=str(tmp_path / "mute"), output_dir=tmp_path / "policy"))
