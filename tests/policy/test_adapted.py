"""Adapters in the type of what passes through them: beside PEFT's, and what autograd keeps for them."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from forage.policy.precision import fp32_logits, fuse_adapters
from tests.factories import tiny_model

IDS = torch.arange(1, 25).view(2, 12)


def policy_of(dtype=torch.bfloat16, **more):
    torch.manual_seed(0)
    policy = get_peft_model(tiny_model().to(dtype), LoraConfig(r=4, target_modules="all-linear", **more))
    for name, weight in policy.named_parameters():
        if "lora_B" in name:  # else the adapter adds nothing
            nn.init.normal_(weight, std=0.1)
    return policy


def fused(policy):
    ours = copy.deepcopy(policy)
    fuse_adapters(ours)
    return ours


def figures(policy):
    """Logits and gradients, and the bytes that autograd kept, each storage once."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    policy.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = policy(input_ids=IDS).logits
    logits.float().square().mean().backward()
    gradients = {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.requires_grad}
    return logits.detach(), gradients, sum(kept.values())


@pytest.mark.parametrize("again", [False, True])
def test_in_fp32_figures_are_pefts(again):
    """`again`: with activations computed again in the backward pass."""
    theirs = policy_of(torch.float32)
    ours = fused(theirs)
    if again:
        for policy in (theirs, ours):
            policy.train()
            policy.enable_input_require_grads()
            policy.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    (logits, gradients, _), (plain_logits, plain_gradients, _) = figures(ours), figures(theirs)
    torch.testing.assert_close(logits, plain_logits)
    assert gradients.keys() == plain_gradients.keys()
    for name, gradient in gradients.items():
        assert gradient.abs().sum() > 0
        torch.testing.assert_close(gradient, plain_gradients[name], msg=name)


def test_in_bf16_they_are_as_close_to_fp32_as_pefts_and_less_is_kept():
    narrow = policy_of()
    exact = copy.deepcopy(narrow).float()
    (logits, gradients, kept), (plain_logits, plain_gradients, plain_kept), (true_logits, true_gradients, _) = (
        figures(policy) for policy in (fused(narrow), narrow, exact)
    )

    def off(found, wanted):
        return ((found.float() - wanted).norm() / wanted.norm()).item()

    assert off(logits, true_logits) < 1.3 * off(plain_logits, true_logits)
    ours, theirs = (
        torch.tensor([off(found[name], true_gradients[name]) for name in true_gradients])
        for found in (gradients, plain_gradients)
    )
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())
    assert ours.mean() < 1.3 * theirs.mean()
    assert kept < 0.8 * plain_kept


@pytest.mark.parametrize("more", [{"lora_dropout": 0.1}, {"use_dora": True}])
def test_dropout_and_variants_are_left_to_peft(more):
    theirs = policy_of(**more)
    ours = fused(theirs)
    found = []
    for policy in (ours, theirs):
        torch.manual_seed(1)
        found.append(policy(input_ids=IDS).logits)
    assert torch.equal(*found)


def test_an_adapter_of_the_output_layer_adds_to_logits_in_fp32():
    torch.manual_seed(0)
    model = tiny_model()
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())  # not the input's any more
    policy = get_peft_model(model.to(torch.bfloat16), LoraConfig(r=4, target_modules=["lm_head"]))
    head = policy.get_output_embeddings()
    nn.init.normal_(head.lora_B["default"].weight, std=0.1)
    hidden = torch.randn(3, head.in_features, dtype=torch.bfloat16)
    with torch.no_grad():
        change = head.scaling["default"] * head.lora_B["default"].weight @ head.lora_A["default"].weight
        wanted = hidden.float() @ (head.base_layer.weight.float() + change.float()).T
    fuse_adapters(policy)
    found = fp32_logits(policy.get_output_embeddings(), hidden)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    found.sum().backward()
    assert head.lora_A["default"].weight.grad.abs().sum() > 0
