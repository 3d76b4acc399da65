"""LocalEngine with an adapter beside its base: the trainer's figures, and no weight changed or copied."""

import asyncio
import copy
from statistics import mean

import pytest
import torch
from peft import LoraConfig, get_peft_model

from forage.engines import local
from forage.engines.base import EngineOptions, Job, Request
from forage.engines.local import LocalEngine
from forage.grpo.options import UpdateOptions
from forage.policy.adapters import publish_adapter
from forage.policy.logprobs import token_logprobs
from forage.policy.manifest import AdapterOptions, PolicyManifest, read_policy_manifest
from forage.policy.packing import pack
from forage.policy.policy import create_policy, load_base, load_policy
from tests.factories import Sequence, tiny_model
from tests.refusals import refused
from tests.sampling import generate, logprobs_of, requests
from tests.tiny import make_model, make_tokenizer

REQUEST = Request((1, 2, 3, 4), 8, (), 3)


def scores_of(policy, asked, samples):
    parts = [
        Sequence(r.ids + s.ids, (0,) * len(r.ids) + (1,) * len(s.ids)) for r, s in zip(asked, samples, strict=True)
    ]
    [batch] = pack(parts, 10_000)
    return token_logprobs(policy, batch)[batch.predicted_BT]


def load(engine, name, folder):
    asyncio.run(engine.load_adapter(name, folder))
    return engine


def test_an_adapter_of_one_step_moves_the_sampler_as_it_moves_the_trainer_in_bf16(tmp_path):
    """Merged into weights in bf16, 96 % of what this step changes would be rounded away. The output layer's logits are
    in fp32, so that no rounding of activations hides it."""
    model, asked = make_model(width=64).bfloat16(), requests(64)
    engine = LocalEngine(copy.deepcopy(model), 64)
    base = generate(engine, *asked)
    policy = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=["lm_head"]))
    weights = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.AdamW(weights.values(), UpdateOptions().learning_rate)
    before = scores_of(policy, asked, base)
    before.mean().backward()
    for weight in weights.values():
        weight.grad *= -1
    optimizer.step()
    expected = (scores_of(policy, asked, base) - before).mean().item()
    load(engine, "one", publish_adapter(policy, tmp_path, 1))
    pairs = zip(base, generate(engine, *asked), strict=True)
    moved = [sum(new.logprobs) - sum(old.logprobs) for old, new in pairs if old.ids == new.ids]
    assert mean(moved) / 12 == pytest.approx(expected, rel=0.05)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def four_bit(request, tmp_path_factory):
    """The card of a policy over a 4-bit base, and an adapter far from zero."""
    folder = tmp_path_factory.mktemp("four_bit")
    tiny_model().save_pretrained(folder / "base")
    make_tokenizer().save_pretrained(folder / "base")
    torch.manual_seed(0)
    options = AdapterOptions(r=4, alpha=8)
    create_policy(str(folder / "base"), folder / "policy", options, quantize=True, dtype=request.param)
    manifest = read_policy_manifest(folder / "policy")
    policy = load_policy(manifest)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.1)
    return manifest, publish_adapter(policy, folder / "run", 1)


def packed(model):
    """The bytes of the 4-bit weights."""
    return {n: w.data.clone().view(torch.uint8) for n, w in model.named_parameters() if hasattr(w, "quant_state")}


def in_fp32(model):
    """Everything but the 4-bit weights in fp32: then only the order of sums tells two computations apart."""
    for weight in model.parameters():
        if not hasattr(weight, "quant_state"):
            weight.data = weight.data.float()
    for module in model.modules():
        if hasattr(module, "compute_dtype"):
            module.compute_dtype = torch.float32
    return model


def test_beside_a_4_bit_base_it_samples_what_the_trainer_scores(four_bit):
    manifest, folder = four_bit
    model = in_fp32(load_base(manifest))
    before = packed(model)
    assert len(before) == 14  # two layers of seven
    engine, plain, trainer = LocalEngine(model, 3), in_fp32(load_base(manifest)), load_policy(manifest, folder)
    in_fp32(trainer)
    [base] = generate(engine, REQUEST)
    load(engine, "run-v000001", folder)
    assert len(packed(model)) == 14
    asked = requests(4)
    for request, sample in zip(asked, generate(engine, *asked), strict=True):
        scored = logprobs_of(trainer, request, sample)
        torch.testing.assert_close(torch.tensor(sample.logprobs), scored, atol=2e-5, rtol=0)
        assert (logprobs_of(plain, request, sample) - scored).abs().max() > 0.1  # the adapter tells
    engine.unload_adapter()
    assert all(torch.equal(weight, before[name]) for name, weight in packed(model).items())
    assert [base] == generate(engine, REQUEST)


# Memory


async def slots_of(manifest):
    async with LocalEngine.open(EngineOptions(), Job(manifest, 99, 2048)) as engine:
        return len(engine.slots)


@pytest.mark.parametrize("quantized", [True, False])
def test_a_gpu_keeps_4_bits_and_takes_the_slots_that_fit(tmp_path, monkeypatch, capsys, quantized):
    """Worked out by hand: a token's keys and values are 2 x 2 layers x 2 heads of 8 numbers in fp32, 256 bytes; a slot
    has 2,048 + 256 of them, and 8 bytes of a logit and a weight for each of the vocabulary's tokens, four times, as
    three are guessed.
    """
    model, asked = tiny_model(), []
    assert (model.config.num_hidden_layers, model.config.num_key_value_heads, model.config.head_dim) == (2, 2, 8)
    slot = 2304 * 256 + 4 * 8 * model.config.vocab_size
    left = [0]
    monkeypatch.setattr(local, "load_base", lambda _, *, dequantize: asked.append(dequantize) or model)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (left[0] + 1000, 10_000))  # a tenth is left
    manifest = PolicyManifest(tmp_path, "base", "base", quantized, "bfloat16")
    for left[0], slots in ((5 * slot, 5), (6 * slot - 1, 5), (99 * slot, 64)):
        assert asyncio.run(slots_of(manifest)) == slots
        assert f"engine: {slots} of 64 sequences of 2048 tokens at once" in capsys.readouterr().out
    assert asked == [False] * 3
    left[0] = slot - 1
    with refused(r"not even one sequence of 2048 tokens .*; lower --max-tokens"):
        asyncio.run(slots_of(manifest))
