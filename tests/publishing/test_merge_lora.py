"""Merged weights equal PEFT's own merge; the proof accepts right and refuses wrong merges; every other refusal."""

import json
import math
import re
import shutil
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, LoraModel, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
)

from forage.agent.options import AgentSettings, read_agent, write_agent
from forage.publishing import merged
from merge_lora import Options, main
from tests.refusals import refused
from tests.tiny import make_model, make_tokenizer


def save_base(folder, model=None, **how):
    (model or make_model()).save_pretrained(folder, **how)
    make_tokenizer().save_pretrained(folder)
    (folder / "README.md").write_text("the base's card")
    (folder / "pytorch_model.bin").write_text("weights in another format")
    (folder / "LICENSE").write_text("free")
    return folder


def save_adapter(base, folder, **settings):
    """A trained adapter: none of its weights are zero."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    policy = get_peft_model(
        model,
        LoraConfig(**{"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "target_modules": "all-linear"} | settings),
    )
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
        elif parameter.requires_grad and "lora_A" not in name:  # DoRA magnitudes and modules saved whole
            parameter.data *= torch.empty_like(parameter).uniform_(0.8, 1.2)
    policy.peft_config["default"].base_model_name_or_path = str(base)
    policy.save_pretrained(folder)
    return folder


def merged_by_peft(base, adapter):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return PeftModel.from_pretrained(model, adapter).merge_and_unload()


def weights(folder):
    return {key: tensor for file in folder.glob("*.safetensors") for key, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory):
    return save_adapter(base, tmp_path_factory.mktemp("adapter") / "lora")


KINDS = {
    "lora": {},
    "dora": {"use_dora": True},
    "some layers, one saved whole": {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head"]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_peft(base, tmp_path, kind):
    adapter = save_adapter(base, tmp_path / "lora", **KINDS[kind])
    wanted = merged_by_peft(base, adapter).state_dict()
    for dtype, tolerance in (("float32", 1e-6), ("bfloat16", 2**-8)):
        output = tmp_path / dtype
        main(Options(lora_model=adapter, output_path=output, dtype=dtype))
        found = weights(output)
        assert found.keys() == weights(base).keys()
        assert {str(tensor.dtype) for tensor in found.values()} == {f"torch.{dtype}"}
        for key in found:
            torch.testing.assert_close(found[key].float(), wanted[key], rtol=tolerance, atol=1e-6)
        assert json.loads((output / "config.json").read_text())["dtype"] == dtype


def leaves_nothing(options, says):
    """It is refused, and nothing is left at or next to the output path."""
    before = sorted(options.output_path.parent.iterdir())
    with refused(re.escape(says)):
        main(options)
    assert sorted(options.output_path.parent.iterdir()) == before


def remake(folder, *, seed=7, **changes):
    """A base of other weights, and other sizes where told."""
    save_base(folder)
    make_model(seed, **changes).save_pretrained(folder)
    return folder


def test_another_base_of_the_same_name_is_refused_and_the_same_one_elsewhere_is_not(base, adapter, tmp_path):
    """What counts is the weights, not the last part of the path, which both bases here share."""
    other = remake(tmp_path / "other" / base.name)
    options = Options(base_model=str(other), lora_model=adapter, output_path=tmp_path / "out", prove=False)
    leaves_nothing(
        options, f"was made for {base}, and {other} has other weights than that had; give --base-model a copy of"
    )
    for name in ("tiny", "elsewhere"):
        moved = shutil.copytree(base, tmp_path / "moved" / name)
        main(replace(options, base_model=str(moved), overwrite=True))
    as_bf16 = tmp_path / "bf16"
    save_base(as_bf16)
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(as_bf16)
    main(replace(options, base_model=str(as_bf16), overwrite=True))


def test_an_adapter_that_does_not_fit_is_refused(adapter, tmp_path):
    other = remake(tmp_path / "wider", width=64)
    options = Options(base_model=str(other), lora_model=adapter, output_path=tmp_path / "out", allow_other_base=True)
    leaves_nothing(options, "are they for each other?")


def test_a_weight_used_twice_stays_one_unless_the_adapter_changes_one_use(tmp_path):
    base = save_base(tmp_path / "tied", make_model(tie_word_embeddings=True))
    options = Options(lora_model=tmp_path / "lora", output_path=tmp_path / "out")
    save_adapter(base, tmp_path / "lora", target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    main(options)
    assert "lm_head.weight" in weights(tmp_path / "out")
    save_adapter(base, tmp_path / "lora")
    main(replace(options, overwrite=True))
    assert "lm_head.weight" not in weights(tmp_path / "out")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("factor", [0.0, 0.9, 2.0, -1.0, math.nan])
def test_a_wrong_merge_is_refused(base, adapter, tmp_path, monkeypatch, dtype, factor):
    def scaled(self, *given):
        for module in self.modules():
            if isinstance(module, LoraLayer):
                module.scale_layer(factor)
        return merge(self, *given)

    merge = LoraModel.merge_and_unload
    monkeypatch.setattr(LoraModel, "merge_and_unload", scaled)
    options = Options(lora_model=adapter, output_path=tmp_path / "out", dtype=dtype)
    leaves_nothing(options, "the merged model is not base + adapter")
    if dtype == "bfloat16" and factor in (0.0, -1.0):  # with any tolerance, the adapter's effect must be there
        monkeypatch.setitem(merged.TOLERANCES, dtype, 1e9)
        leaves_nothing(options, "of the adapter's effect: the merge is wrong")
    main(replace(options, prove=False))


def test_an_adapter_too_small_for_bfloat16_is_refused_and_float32_keeps_it(tmp_path):
    base = save_base(tmp_path / "tiny", make_model().to(torch.bfloat16))
    small = save_adapter(base, tmp_path / "small")
    tensors = load_file(small / "adapter_model.safetensors")
    tensors = {key: tensor * 1e-4 if "lora_B" in key else tensor for key, tensor in tensors.items()}
    save_file(tensors, small / "adapter_model.safetensors")
    options = Options(lora_model=small, output_path=tmp_path / "out")
    leaves_nothing(options, "or bfloat16 is too coarse for so small an adapter (try --dtype float32)")
    main(replace(options, dtype="float32"))


def test_the_merged_model_plays_as_its_policy_did(tmp_path):
    base = save_base(tmp_path / "base")
    save_adapter(base, tmp_path / "run" / "adapters" / "v000003")
    write_agent(AgentSettings(k=7), tmp_path / "run")
    main(Options(tmp_path / "run", tmp_path / "merged", dtype="float32"))
    assert read_agent(tmp_path / "merged") == AgentSettings(k=7)
