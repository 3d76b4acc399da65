"""Packed bytes stay the same whatever they are called, and their scales go where they go."""

from dataclasses import replace

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit

from forage.policy.logprobs import token_logprobs
from forage.policy.manifest import AdapterOptions, read_policy_manifest
from forage.policy.packing import pack
from forage.policy.policy import create_policy, load_base, load_policy, move_scales, packed_layers, store_as, viewed
from tests.factories import Sequence
from tests.refusals import refused


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny_base):
    """A policy over the tiny model in 4 bits."""
    folder = tmp_path_factory.mktemp("four_bit") / "policy"
    create_policy(str(tiny_base), folder, AdapterOptions(r=4), quantize=True, dtype="float32")
    return folder


def raw(model):
    """The packed bytes of each layer."""
    return [layer.weight.data.reshape(-1).view(torch.uint8).clone() for layer in packed_layers(model)]


def unpacked(model):
    return [dequantize_4bit(layer.weight.data, layer.weight.quant_state) for layer in packed_layers(model)]


def scores(model):
    [batch] = pack([Sequence((3, 4, 5, 6, 7), (0, 0, 1, 1, 1))], 10)
    with torch.no_grad():
        return token_logprobs(model, batch)


def test_a_view_is_the_same_bytes():
    packed = torch.tensor([[0x01], [0x80], [0xC0], [0x7F]], dtype=torch.uint8)  # the latter two are NaN in bf16
    numbers = viewed(packed, torch.bfloat16)
    assert numbers.shape == (2, 1)
    assert numbers[0, 0].item() == -torch.tensor(0x0001, dtype=torch.int16).view(torch.bfloat16).item()
    assert torch.isnan(numbers[1, 0])
    assert torch.equal(viewed(numbers, torch.uint8), packed)
    with refused(r"a 4-bit weight of 3 bytes can't be sharded as bf16; give --sharding zero2"):
        viewed(packed[:3], torch.bfloat16)


def test_called_bf16_a_policy_says_the_same(made):
    policy = load_policy(read_policy_manifest(made))
    assert len(list(packed_layers(policy))) == 2 * 7
    bytes_before, weights_before, before = raw(policy), unpacked(policy), scores(policy)
    store_as(policy, torch.bfloat16)
    for layer in packed_layers(policy):
        assert (layer.weight.dtype, layer.weight.quant_storage, layer.quant_storage) == (torch.bfloat16,) * 3
    assert all(map(torch.equal, raw(policy), bytes_before))
    assert all(map(torch.equal, unpacked(policy), weights_before))
    assert torch.equal(scores(policy), before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forward_and_backward_pass_and_the_unpacked_base_have_the_same_weights(made, dtype):
    """Products with the identity say which weights they are, as all other terms are times 0."""
    manifest = replace(read_policy_manifest(made), dtype=dtype)
    whole = load_base(manifest, dequantize=True)
    base, kind = load_base(manifest), getattr(torch, dtype)
    assert {weight.dtype for weight in base.parameters()} == {torch.uint8, kind}
    checked = 0
    for name, layer in base.named_modules():
        if layer in set(packed_layers(base)):
            eye_II = torch.eye(layer.in_features, dtype=kind)
            rows_OI = torch.zeros(layer.out_features, layer.in_features, dtype=kind, requires_grad=True)
            layer(rows_OI).backward(torch.eye(layer.out_features, dtype=kind))
            weight_OI = whole.get_submodule(name).weight
            assert weight_OI.dtype == kind
            for training in (False, True):  # two ways through bitsandbytes
                assert torch.equal(layer(eye_II.clone().requires_grad_(training)).T, weight_OI)
            assert torch.equal(rows_OI.grad, weight_OI)
            checked += 1
    assert checked == 2 * 7
    torch.testing.assert_close(scores(base), scores(whole), atol=1e-6, rtol=1e-6)


def test_every_scale_goes_to_the_device(made):
    """The device meta stands in for a GPU."""
    base = load_base(read_policy_manifest(made))
    states = [layer.weight.quant_state for layer in packed_layers(base)]
    assert all(state.nested for state in states)
    move_scales(base, torch.device("meta"))
    for state in states:
        tensors = (state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)
        assert {tensor.device.type for tensor in tensors} == {"meta"}
