"""bench.mismatch: what it changes in the trainer is only where numbers are rounded."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model

from bench.mismatch import ALL_FP32, AS_IT_TRAINS, VARIANTS, Sampled, apart, flat, score
from tests.factories import tiny_model


def policy_in(dtype):
    torch.manual_seed(0)
    model = tiny_model()
    model.lm_head.weight.data *= 40
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    policy = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    for name, weight in policy.named_parameters():
        if "lora_" not in name:
            weight.data = weight.data.bfloat16().to(dtype)
    return policy.eval()


def made(seed, prompt, count):
    ids = torch.randint(1, 61, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    zeros, values = (0.0,) * len(prompt), tuple(float(n) for n in range(count))
    return Sampled(prompt, (*prompt, *ids), (0,) * len(prompt) + (1,) * count, zeros + values, zeros + values)


SAMPLED = [made(0, (5, 6, 7), 9), made(1, (5, 6, 8, 9), 14), made(2, (5, 6), 4)]


def test_figures_by_hand():
    row = apart("s", "t", torch.tensor([0.0, 0.0, 0.0, -1.0]).double(), torch.tensor([0.0, 0.3, -0.8, -0.2]).double())
    assert (row.mean, row.most, row.tokens) == (pytest.approx(1.9 / 4), pytest.approx(0.8), 4)
    assert row.rms == pytest.approx(math.sqrt((0.09 + 0.64 + 0.64) / 4))
    # Ratios 1, 1.35, .45 and 2.23.
    assert (row.clipped, row.capped, row.masked) == (0.75, 0.25, 0.5)


def test_values_are_those_of_sampled_tokens_in_order():
    assert flat(SAMPLED, [one.logprobs for one in SAMPLED]).tolist() == [*range(9), *range(14), *range(4)]
    found = score(policy_in(torch.float32), SAMPLED)
    alone = score(policy_in(torch.float32), SAMPLED, budget=1, shared=False)
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=0)
    assert len(found) == 27


@pytest.mark.parametrize("name", VARIANTS)
def test_in_fp32_no_change_shows(name):
    policy = policy_in(torch.float32)
    changed = score(VARIANTS[name](policy) or policy, SAMPLED)
    expected = score(policy_in(torch.float32), SAMPLED)
    torch.testing.assert_close(changed, expected, atol=0.2 if name == "adapter in bf16" else 2e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in (AS_IT_TRAINS, ALL_FP32)])
def test_in_bf16_every_change_does(name):
    policy = policy_in(torch.bfloat16)
    changed = score(VARIANTS[name](policy) or policy, SAMPLED)
    assert (changed - score(policy_in(torch.bfloat16), SAMPLED)).abs().max() > 1e-6


def test_without_rounding_in_between_bf16_is_nearer_to_fp32():
    exact = score(policy_in(torch.float32), SAMPLED)
    apart_by = {}
    for name in (AS_IT_TRAINS, "head in bf16", "residuals in fp32"):
        policy = policy_in(torch.bfloat16)
        VARIANTS[name](policy)
        apart_by[name] = (score(policy, SAMPLED) - exact).abs().mean()
    assert apart_by["residuals in fp32"] < apart_by[AS_IT_TRAINS] < apart_by["head in bf16"]
