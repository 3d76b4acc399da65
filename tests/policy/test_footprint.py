"""Bytes of each stage, counted by hand for a model of two layers; adapters against peft's own."""

import json
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from forage.errors import UserError
from forage.policy import footprint as fp
from forage.policy.footprint import KNOWN, ModelShape, shape_from_config, shape_of, training

# hidden 64, MLP 128, 4 heads of 16 with 2 for keys: queries 64, keys 32. Linear layers: 64 x 64 x 2 + 64 x 32 x 2
# + 64 x 128 x 3 = 36,864 weights a layer. Embeddings and output: 2 x 256 x 64 = 32,768.
SMALL = ModelShape(2, 64, 128, 4, 2, 16, 256, False)
SEVEN = KNOWN["Qwen/Qwen2.5-7B-Instruct"]


def test_weights():
    assert SMALL.linear_parameters == 73_728
    assert SMALL.embeddings == 32_768
    assert fp.weight_bytes(SMALL, "bf16") == 2 * (73_728 + 32_768)
    assert fp.weight_bytes(SMALL, "nf4") == 36_864 + 4_608 + 65_536  # half a byte each, and a scale for 64
    assert fp.kv_bytes(SMALL) == 2 * 2 * 32 * 2
    assert fp.kv_bytes(SEVEN) == 56 * 1024


def test_an_adapter_is_as_large_as_peft_makes_it():
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = get_peft_model(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), lora)
    trained = [weight for weight in policy.parameters() if weight.requires_grad]
    assert {weight.dtype for weight in trained} == {torch.float32}  # as the footprint takes for granted
    assert SMALL.adapter(8) == sum(weight.numel() for weight in trained)


def test_what_a_layer_keeps_by_hand():
    # A token: two norms in fp32 512; inputs in bf16, of q, k and v 128, of o 128, of gate and up 128, of down 256, and
    # 7 x 16 fp32 between A and B 448; query, output, key and value of all heads 512, sums of 4 heads 16; three of the
    # MLP 768; a row of the mask of 5 bf16.
    assert fp.layer_bytes(SMALL, 16, tokens=10, longest=5) == 10 * (2_896 + 10)


@pytest.mark.parametrize("vocabulary", [256, 32])
def test_an_update_holds_its_parts(vocabulary):
    shape = replace(SMALL, vocabulary=vocabulary)
    held = fp.weight_bytes(shape, "bf16") + 16 * SMALL.adapter(16) + fp.CONTEXT
    kept, ends, work = 2 * 10 * 2_906, 10 * 10 * 64, 10 * (4 * 128 + 10 * 64)
    logits = 16 * vocabulary * 10  # at 256 more than `work`, so the peak is in the head
    assert training(shape, 16, "bf16", 10, 5, checkpointing=False) == held + kept + ends + max(work, logits)
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
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1)
    assert shape.linear_parameters + shape.embeddings == matrices
    linears = [module for module in model.model.layers[0].modules() if isinstance(module, torch.nn.Linear)]
    assert shape.linears == [(linear.in_features, linear.out_features) for linear in linears]


def test_the_shape_of_a_folder(tmp_path):
    LlamaConfig(**PARTS).save_pretrained(tmp_path / "base")
    (tmp_path / "config.json").write_text("{}")  # a script's options
    (tmp_path / "model.json").write_text(json.dumps({"base": "base", "full_base": "full", "quantized": True}))
    assert shape_of(str(tmp_path)) == shape_of(str(tmp_path / "base")) == ModelShape(2, 32, 48, 4, 2, 8, 96, False)
    with pytest.raises(UserError, match="m is a mixtral model; memory can be planned for llama, qwen2"):
        shape_from_config({"model_type": "mixtral"}, "m")
