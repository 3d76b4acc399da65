"""Inputs kept narrow: the same figures as PEFT's, bit for bit, in less memory."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from forage.policy.precision import WideningLinear, keep_inputs_narrow
from tests.factories import tiny_model


def policy_of(dtype=torch.bfloat16, **more):
    torch.manual_seed(0)
    policy = get_peft_model(tiny_model().to(dtype), LoraConfig(r=4, target_modules="all-linear", **more))
    for name, weight in policy.named_parameters():
        if "lora_B" in name:  # else the adapter adds nothing
            nn.init.normal_(weight, std=0.1)
    return policy


def figures(policy, ids):
    """Logits and gradients, and the bytes that autograd kept, each storage once."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    policy.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = policy(input_ids=ids).logits
    logits.float().square().mean().backward()
    gradients = {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.requires_grad}
    return logits.detach(), gradients, sum(kept.values())


@pytest.mark.parametrize("again", [False, True])
def test_figures_are_pefts_bit_for_bit_and_less_is_kept(again):
    """`again`: with activations computed again in the backward pass."""
    theirs, ids = policy_of(), torch.arange(1, 25).view(2, 12)
    ours = copy.deepcopy(theirs)
    keep_inputs_narrow(ours)
    if again:
        for policy in (theirs, ours):
            policy.train()
            policy.enable_input_require_grads()
            policy.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    (logits, gradients, kept), (plain_logits, plain_gradients, plain_kept) = (figures(p, ids) for p in (ours, theirs))
    assert torch.equal(logits, plain_logits)
    assert gradients.keys() == plain_gradients.keys()
    for name, gradient in gradients.items():
        assert gradient.abs().sum() > 0
        assert torch.equal(gradient, plain_gradients[name]), name
    assert again or kept < 0.8 * plain_kept


@pytest.mark.parametrize("more", [{"lora_dropout": 0.1}, {"use_dora": True}])
def test_dropout_and_variants_are_left_to_peft(more):
    policy = policy_of(**more)
    keep_inputs_narrow(policy)
    assert not [module for module in policy.modules() if isinstance(module, WideningLinear)]
    policy(input_ids=torch.arange(1, 9)[None])
