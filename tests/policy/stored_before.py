"""A 4-bit policy as earlier versions wrote it."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file


def as_stored_before(policy, folder):
    """A copy of a policy whose packed bytes are called bf16."""
    shutil.copytree(policy, folder)
    file, config = folder / "base" / "model.safetensors", folder / "base" / "config.json"
    tensors = load_file(file)
    packed = [name.partition(".quant_state.")[0] for name in tensors if ".quant_state." in name]
    for name in packed:
        assert tensors[name].dtype == torch.uint8
        tensors[name] = tensors[name].flatten().view(torch.bfloat16).view(-1, 1)
    save_file(tensors, file, metadata={"format": "pt"})
    fields = json.loads(config.read_text())
    fields["quantization_config"]["bnb_4bit_quant_storage"] = "bfloat16"
    config.write_text(json.dumps(fields))
    return folder
