"""Base models: gpt2 and its kin beside Llama's, in full precision, and what is saved of them."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from forage.extras.rewriter.actors import load_policy, make_actors, save_lm
from forage.extras.rewriter.options import ActorOptions, Options
from forage.extras.rewriter.ppo import logits_and_values
from tests.tiny_rewriter import make_tiny, tiny_gpt2, tiny_lm

SEQUENCES = torch.tensor([[5, 6, 7, 8, 9]])
KINDS = {"llama": tiny_lm, "gpt2": tiny_gpt2}


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    """folder/model and folder/data; gpt2 has no chat template."""
    made = tmp_path_factory.mktemp(request.param)
    make_tiny(made, lm=KINDS[request.param], template=request.param != "gpt2")
    return made


def test_the_saved_model_is_the_one_that_was_trained(folder, tmp_path):
    source, options = str(folder / "model"), Options(actor=ActorOptions(dtype="float32"))
    tokenizer = AutoTokenizer.from_pretrained(source)
    policy = load_policy(source, tokenizer, options)
    actors = make_actors(policy, options.actor, seed=0)
    plain = policy.response_logits(SEQUENCES, 3)[0]
    torch.manual_seed(0)
    adapted = set()
    for name, weight in policy.lm.named_parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.1)
            adapted.add(name.split(".lora_")[0])
    assert len(adapted) == (2 * 4 if "gpt2" in str(folder) else 2 * 7)  # every linear layer of both
    wanted, values = logits_and_values(actors, SEQUENCES, 3)
    assert not torch.allclose(wanted, plain, atol=0.1)
    assert values.tolist() == [[0, 0, 0]]
    torch.testing.assert_close(actors.reference.response_logits(SEQUENCES, 3), plain, rtol=0, atol=0)
    save_lm(policy, source, tokenizer, tmp_path / "saved")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    got = saved(SEQUENCES).logits[:, 1:4] / policy.sampling.temperature
    torch.testing.assert_close(got, wanted.detach(), rtol=1e-3, atol=1e-3)
