"""The conversion of a GGUF file, on a tiny model like the packaged one: weights, tokenizer and chat template."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM

from forage.policy.base_models import resolve_model

WIDTH, INNER, HEADS, KV_HEADS, LAYERS = 32, 64, 4, 2, 2
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}<|im_end|>{% endfor %}"
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ġa", "he"]
SMALL = WIDTH // HEADS * KV_HEADS
SHAPES = {
    "attn_q": (WIDTH, WIDTH), "attn_k": (SMALL, WIDTH), "attn_v": (SMALL, WIDTH), "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER),
}  # fmt: skip
NAMES = {
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


def write_gguf(path):
    """A llama of 2 layers in 4 bits (Q4_1), its embedding in 8, as in the package; returns its unpacked tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["Ġ a", "h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    draw = np.random.default_rng(0)
    tensors = {"token_embd": (draw.normal(size=(len(TOKENS), WIDTH)), Kind.Q8_0)}
    tensors["output_norm"] = draw.uniform(0.5, 1.5, WIDTH), Kind.F32
    for layer in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{norm}"] = draw.uniform(0.5, 1.5, WIDTH), Kind.F32
        for name, shape in SHAPES.items():
            tensors[f"blk.{layer}.{name}"] = draw.normal(size=shape), Kind.Q4_1
    unpacked = {}
    for name, (values, kind) in tensors.items():
        packed = gguf.quantize(values.astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=kind)
        unpacked[name] = torch.tensor(gguf.dequantize(packed, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unpacked


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    tensors = write_gguf(folder / "tiny.gguf")
    made = resolve_model(str(folder / "tiny.gguf"), folder / "models")
    weights = Path(made, "model.safetensors").stat()
    assert resolve_model(str(folder / "tiny.gguf"), folder / "models") == made  # the same file is unpacked once
    assert Path(made, "model.safetensors").stat() == weights
    return Path(made), tensors


def test_a_gguf_file_becomes_a_plain_bf16_model(converted):
    folder, tensors = converted
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    assert getattr(model.config, "quantization_config", None) is None
    assert (model.config.num_hidden_layers, model.config.num_key_value_heads) == (LAYERS, KV_HEADS)
    found = model.state_dict()
    expected = {"embed_tokens": "token_embd", "norm": "output_norm"}
    expected |= {f"layers.{n}.{ours}": f"blk.{n}.{name}" for n in range(LAYERS) for name, ours in NAMES.items()}
    for ours, name in expected.items():
        assert torch.equal(found[f"model.{ours}.weight"], tensors[name].bfloat16()), name
    assert torch.equal(found["lm_head.weight"], tensors["token_embd"].bfloat16())
