"""What a run holds: by hand, and as the actors and AdamW really hold it."""

import pytest
import torch

from forage.errors import UserError
from forage.optimizer import OptimizerOptions
from forage.policy.footprint import GIB, TRAINED_NF4
from forage.rewriter.memory import Memory, check_room, empty_model, memory_of
from forage.rewriter.options import ActorOptions
from forage.rewriter.ppo import make_optimizer
from tests.tiny_rewriter import tiny_actors, tiny_gpt2, tiny_lm


def held(parts):
    return sum(part.numel() * part.element_size() for part in parts)


@pytest.mark.parametrize("lm", [tiny_lm, tiny_gpt2])
@pytest.mark.parametrize(
    "options",
    [ActorOptions(lora_rank=0), ActorOptions(lora_rank=0, value="shared"), ActorOptions(lora_rank=3, dtype="float32")],
)
def test_what_is_counted_is_what_is_held(lm, options, tmp_path):
    lm()[0].save_pretrained(tmp_path)
    counted = memory_of(empty_model(str(tmp_path)), options)
    actors, _ = tiny_actors(options, lm=lm)
    weights = dict(actors.policy.named_parameters())
    adapter = [weight for name, weight in weights.items() if "lora" in name]
    assert counted.adapter == held(adapter)
    assert counted.policy == held(weights.values()) - held(adapter)
    assert counted.reference == held(actors.reference.parameters())
    assert counted.value == held(actors.value_model.parameters())
    optimizer = make_optimizer(actors, OptimizerOptions(), [])
    trained = [weight for weight in actors.parameters() if weight.requires_grad]
    for weight in trained:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert counted.optimizer == held(moments) + held(weight.grad for weight in trained)


def test_a_4_bit_base_by_hand(tmp_path):
    tiny_lm()[0].save_pretrained(tmp_path)
    counted = memory_of(empty_model(str(tmp_path)), ActorOptions(quantize=True, dtype="float32"))
    # Two layers: q and o 32 x 32, k and v 16 x 32, three of 48 x 32. Not packed: 512 x 32 at both ends, five norms.
    packed, others = 2 * (2 * 1024 + 2 * 512 + 3 * 1536), 2 * 512 * 32 + 5 * 32
    adapter = 16 * 2 * (2 * 64 + 2 * 48 + 3 * 80)
    assert counted == Memory(4 * others + packed * TRAINED_NF4, 4 * adapter, 0, 4 * 33, 12 * (adapter + 33))


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        (ActorOptions(lora_rank=0), "--lora-rank 16"),
        (ActorOptions(), "--quantize, or a smaller --base-model"),
        (ActorOptions(quantize=True), "give a smaller --base-model"),
    ],
)
def test_what_a_gpu_can_not_hold_is_refused(options, way_out):
    needed = Memory(policy=2 * GIB, adapter=GIB / 2, reference=0, value=0, optimizer=GIB)
    check_room(needed, 3.5 * GIB, options)
    with pytest.raises(UserError, match=f"3.50 GiB .*the policy 2.00, its adapter 0.50.* 3.40 GiB; .*{way_out}"):
        check_room(needed, 3.4 * GIB, options)
