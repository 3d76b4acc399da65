"""Attention branch by branch: what a branch sees by hand, the same output and gradients as under a mask, and where."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM

from forage.policy import logprobs
from forage.policy.logprobs import token_logprobs
from forage.policy.manifest import read_policy_manifest
from forage.policy.packing import BRANCHES, Branch, Branches, attend_by_branches, pack_trees
from forage.policy.policy import load_policy


def test_what_a_branch_sees_by_hand():
    """Nodes 4 and 5 after 0 and 1: each sees those two, itself, and 5 also sees 4."""
    branch = Branch(4, 6, ((0, 2), (4, 6)))
    assert branch.nodes.tolist() == [0, 1, 4, 5]
    assert branch.seen_PQ.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 6])
def test_output_and_gradients_are_those_under_a_mask(heads, on_gpu):
    """Six heads of queries over as many heads of keys and values, or fewer; the GPU's way too, which a CPU can go."""
    drawn = torch.Generator().manual_seed(0)
    parts = Branch(0, 5, ((0, 5),)), Branch(5, 9, ((0, 3), (5, 9))), Branch(9, 10, ((0, 3), (5, 7), (9, 10)))
    seen_NN = torch.zeros(10, 10, dtype=torch.bool)
    for part in parts:
        seen_NN[part.start : part.end, part.nodes] = part.seen_PQ
    states = [torch.randn(1, count, 10, 4, generator=drawn, requires_grad=True) for count in (6, heads, heads)]
    weights = torch.randn(1, 6, 10, 4, generator=drawn)

    def of(attend):
        for state in states:
            state.grad = None
        found = attend()
        (found * weights).sum().backward()
        return [found.detach(), *(state.grad.clone() for state in states)]

    masked = of(lambda: scaled_dot_product_attention(*states, attn_mask=seen_NN, scale=0.5, enable_gqa=True))
    ours = of(lambda: Branches(parts, None if on_gpu else torch.float32).attend(*states, 0.5))
    for one, other in zip(ours, masked, strict=True):
        torch.testing.assert_close(one, other)


def test_a_policy_on_a_cpu_attends_so(tiny):
    policy = load_policy(read_policy_manifest(tiny / "policy"), device="cpu")
    assert policy.get_base_model().config._attn_implementation == BRANCHES


SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def test_a_model_that_does_not_hand_branches_on_gets_no_numbers(monkeypatch):
    """Rather than those of tokens that see each other."""
    monkeypatch.setattr(logprobs, "SHARING", {"stablelm"})
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("stablelm", **SMALL)).float().eval()
    attend_by_branches(model)
    rows = [SimpleNamespace(ids=ids, mask=(0, 1, 1)) for ids in ((5, 6, 7), (5, 6, 9))]
    scores = token_logprobs(model, pack_trees(rows, 100)[0])
    assert scores[:, 1:].isnan().all()
