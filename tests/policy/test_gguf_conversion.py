"""The packaged GGUF file becomes a plain model with the weights that are packed in it."""

import gguf
import torch
from transformers import AutoModelForCausalLM

from forage.policy.base_models import gguf_path

NAMES = {
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


def test_a_gguf_file_becomes_a_plain_bf16_model(model_folder):
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    assert (model.dtype, getattr(model.config, "quantization_config", None)) == (torch.bfloat16, None)
    found = model.state_dict()
    expected = {"embed_tokens": "token_embd", "norm": "output_norm"}
    expected |= {f"layers.{n}.{ours}": f"blk.{n}.{name}" for n in (0, 29) for name, ours in NAMES.items()}
    packed = {tensor.name: tensor for tensor in gguf.GGUFReader(gguf_path()).tensors}
    for ours, name in expected.items():
        tensor = packed[f"{name}.weight"]
        weight = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type)).bfloat16()
        assert torch.equal(found[f"model.{ours}.weight"], weight), name
    assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])
