"""Bytes of each stage, counted by hand for a model of two layers; adapters against peft's own."""

import json
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from forage.errors import UserError
from forage.policy import footprint as fp
from forage.policy.footprint import KNOWN, Batch, Lora, ModelShape, shape_from_config, shape_of, training

# hidden 64, MLP 128, 4 heads of 16 with 2 for keys: queries 64, keys 32. Linear layers: 64 x 64 x 2 + 64 x 32 x 2
# + 64 x 128 x 3 = 36,864 weights a layer. The rest: 2 x 256 x 64 + 5 x 64 = 33,088.
SMALL = ModelShape(2, 64, 128, 4, 2, 16, 256, False)
SEVEN = KNOWN["Qwen/Qwen2.5-7B-Instruct"]


def test_weights():
    assert SMALL.linear_parameters == 73_728
    assert SMALL.other_parameters == 33_088
    assert fp.weight_bytes(SMALL, "bf16") == 2 * (73_728 + 33_088)
    # half a byte each, a byte of scale for 64, and 4 bytes for 256 of those scales
    assert fp.weight_bytes(SMALL, "nf4") == 36_864 + 1_152 + 18 + 66_176
    assert fp.weight_bytes(SMALL, "nf4", fp.SERVED_NF4) == 36_864 + 4_608 + 66_176
    assert fp.kv_bytes(SMALL) == 2 * 2 * 32 * 2
    assert fp.kv_bytes(SEVEN) == 56 * 1024


@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj")])
def test_adapters_are_as_large_as_peft_makes_them(targets):
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    lora = LoraConfig(r=8, target_modules=list(targets) or "all-linear", task_type="CAUSAL_LM")
    policy = get_peft_model(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), lora)
    trained = [weight for weight in policy.parameters() if weight.requires_grad]
    assert {weight.dtype for weight in trained} == {torch.float32}  # as the footprint takes for granted
    assert Lora(8, targets).parameters(SMALL) == sum(weight.numel() for weight in trained)


def test_what_a_layer_keeps_by_hand():
    # A token: two norms in fp32 512; inputs in bf16, of q, k and v 128, of o 128, of gate and up 128, of down 256, and
    # 7 x 16 fp32 between A and B 448; query, output 256, sums of 4 heads 16, key and value 128; three of the MLP 768.
    assert fp.layer_bytes(SMALL, Lora(16), Batch(1, 10)) == 10 * 2_768
    # Padded: keys and values for all heads, 256 in place of 128, and a mask of 2 rows x 10 x 10 in bf16.
    assert fp.layer_bytes(SMALL, Lora(16), Batch(2, 10, padded=True)) == 20 * 2_896 + 400
    # Not adapted, a layer keeps neither its input nor anything between A and B.
    assert fp.layer_bytes(SMALL, Lora(16, ("q_proj",)), Batch(1, 10)) == 10 * (512 + 128 + 64 + 400 + 768)
    # Of two that read the same input, one keeps it.
    assert fp.layer_bytes(SMALL, Lora(16, ("q_proj", "v_proj")), Batch(1, 10)) == 10 * (512 + 128 + 128 + 400 + 768)


@pytest.mark.parametrize("vocabulary", [256, 32])
def test_an_update_holds_its_parts(vocabulary):
    shape = replace(SMALL, vocabulary=vocabulary)
    held = fp.weight_bytes(shape, "bf16") + 16 * Lora().parameters(SMALL) + fp.CONTEXT
    kept, ends, work = 2 * 10 * 2_768, 10 * 10 * 64, 10 * (4 * 128 + 10 * 64)
    logits = 16 * vocabulary * 10  # at 256 more than `work`, so the peak is in the head
    assert training(shape, Lora(), "bf16", Batch(1, 10), checkpointing=False) == held + kept + ends + max(work, logits)
    assert (work < logits) == (vocabulary == 256)


# Shapes

PARTS = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_a_config_has_the_size_of_its_model(kind, tied):
    config = kind(**PARTS, head_dim=16, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = shape_from_config(config.to_dict(), "small")
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    linears = {name.split(".")[-1]: module for name, module in model.model.layers[0].named_modules()}
    assert shape.linears == {n: (m.in_features, m.out_features) for n, m in linears.items() if n.endswith("_proj")}


def test_the_shape_of_a_folder(tmp_path):
    LlamaConfig(**PARTS).save_pretrained(tmp_path / "base")
    (tmp_path / "config.json").write_text("{}")  # a script's options
    (tmp_path / "model.json").write_text(json.dumps({"base": "base", "full_base": "full", "quantized": True}))
    assert shape_of(str(tmp_path)) == shape_of(str(tmp_path / "base")) == ModelShape(2, 32, 48, 4, 2, 8, 96, False)
    with pytest.raises(UserError, match="m is a mixtral model; memory can be planned for llama, qwen2"):
        shape_from_config({"model_type": "mixtral"}, "m")
