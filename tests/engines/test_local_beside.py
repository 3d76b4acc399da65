"""LocalEngine with an adapter beside its base: the trainer's figures, and no weight changed or copied."""

import asyncio
import copy
from statistics import mean

import pytest
import torch
from peft import LoraConfig, get_peft_model

from forage.engines import choice
from forage.engines.base import EngineOptions, Request
from forage.engines.local import LocalEngine
from forage.optimizer import OptimizerOptions
from forage.policy import room
from forage.policy.adapters import publish_adapter
from forage.policy.card import AdapterOptions, PolicyCard, read_policy_card
from forage.policy.footprint import GIB, KNOWN, slots_within
from forage.policy.logprobs import token_logprobs
from forage.policy.memory import RESERVE
from forage.policy.packing import pack
from forage.policy.policy import create_policy, load_base, load_policy
from tests.factories import Sequence, tiny_model
from tests.sampling import generate, logprobs_of, requests
from tests.tiny import make_model, make_tokenizer

REQUEST = Request((1, 2, 3, 4), 8, (), 3)
SEVEN = KNOWN["Qwen/Qwen2.5-7B-Instruct"]


def adapter(folder, model, seed=1, **settings):
    """An adapter far from zero."""
    torch.manual_seed(seed)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, **settings)
    get_peft_model(model, config).save_pretrained(folder)
    return folder


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
    optimizer = torch.optim.AdamW(weights.values(), OptimizerOptions().learning_rate)
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
    card = read_policy_card(folder / "policy")
    policy = load_policy(card)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.1)
    return card, publish_adapter(policy, folder / "run", 1)


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
    card, folder = four_bit
    model = in_fp32(load_base(card))
    before = packed(model)
    assert len(before) == 14  # two layers of seven
    engine, plain, trainer = LocalEngine(model, 3), in_fp32(load_base(card)), load_policy(card, folder)
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


def test_slots_by_hand():
    """A slot of a 7B with 2,048 tokens: 56 KiB x 2,049, and 28 bytes of logits for each of 152,064 tokens."""
    each = 56 * 1024 * 2049 + 28 * 152_064
    once = 4 * SEVEN.adapter(16) + 2048 * (8 * 18944 + 12 * 3584) + 2048**2  # adapter, a prompt's forward pass
    for slots in (0, 1, 5):
        for missing, fit in ((0, slots), (1, slots - 1)):
            room_left = once + slots * each - missing
            found = slots_within(room_left, SEVEN, 16, "bf16", wanted=64, longest=2048)
            assert found == max(0, fit)
    assert slots_within(900 * GIB, SEVEN, 16, "bf16", wanted=64, longest=2048) == 64
    # Beside, the largest 4-bit weight is unpacked: 3584 x 18944 in 16 bits, its scales twice in fp32.
    unpacked = 3584 * 18944 * (2 + 8 / 64)
    room_left = once + unpacked + 5 * each
    assert slots_within(room_left, SEVEN, 16, "nf4", wanted=64, longest=2048) == 5


def with_gpu(monkeypatch, free):
    """A stand-in for a GPU of 24 GiB, of which so many are free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * GIB, 24 * GIB))


def opened(monkeypatch, card, free, slots=64, tokens=2048):
    """The engine that a GPU with so much free memory opens, and how its base was loaded."""
    asked = []

    def loaded(card, *, dequantize):
        asked.append(dequantize)
        return tiny_model()

    monkeypatch.setattr(choice, "load_base", loaded)
    monkeypatch.setattr(choice, "check_length", lambda card, tokens: None)  # the hub's configuration can't be had
    with_gpu(monkeypatch, free)
    monkeypatch.setattr(room, "compute_dtype", lambda _: torch.bfloat16)

    async def run():
        async with choice.open_engine(EngineOptions(engine="local"), card, slots, tokens) as engine:
            return engine

    return asyncio.run(run()), asked


def seven(folder, *, quantized):
    return PolicyCard(folder, "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", quantized, "bfloat16")


@pytest.mark.parametrize("quantized", [True, False])
def test_a_gpu_keeps_4_bits_and_takes_the_slots_that_fit(tmp_path, monkeypatch, capsys, quantized):
    engine, asked = opened(monkeypatch, seven(tmp_path, quantized=quantized), free=6)
    assert asked == [False]
    precision, free = "nf4" if quantized else "bf16", (6 - 24 * RESERVE) * GIB
    expected = slots_within(free, SEVEN, 0, precision, wanted=64, longest=2048)
    assert 16 < len(engine.slots) == expected < 64
    told = capsys.readouterr().out
    assert told.count("\n") == 1
    assert f"engine: {expected} of 64 sequences of 2048 tokens at once, in the 4.1 GiB that are free" in told
