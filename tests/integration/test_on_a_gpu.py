"""What only a GPU can show: its kernels give the numbers of plain fp32, and a run trains, resumes and merges there."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM

import merge_lora
from forage.grpo.learner import Learner
from forage.grpo.options import UpdateOptions
from forage.grpo.update import UpdateContext, prepare, update
from forage.optimizer import MemoryOptions
from forage.policy.logprobs import token_scores
from forage.policy.manifest import AdapterOptions
from forage.policy.packing import pack, pack_trees, values_like
from forage.policy.policy import add_adapter, create_policy, ready_to_train
from forage.policy.precision import fp32_logits
from forage.runs.stats import read_stats
from tests.factories import EPISODE, Sequence, stir
from tests.tiny_training import tiny_options, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="left out: no NVIDIA GPU, or not run by make test-gpu"),
]

QWEN = {  # the shape of a head of Qwen2.5, which flash attention takes
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1024,
}  # fmt: skip


def group(prompt=100, lengths=(200, 150, 120, 64)):
    """Episodes of one prompt, of which two share sampled tokens as well."""
    drawn = torch.Generator().manual_seed(0)
    start, rows = torch.randint(1, 1024, (prompt,), generator=drawn).tolist(), []
    for number, length in enumerate(lengths):
        more = torch.randint(1, 1024, (length,), generator=drawn).tolist()
        if number == 1:
            more[:30] = rows[0].ids[prompt : prompt + 30]
        rows.append(Sequence((*start, *more), (0,) * prompt + (1,) * (length - 20) + (0,) * 10 + (1,) * 10))
    return rows


def policy_of(dtype):
    torch.manual_seed(0)
    auto = AutoModelForCausalLM
    model = auto.from_config(AutoConfig.for_model("qwen2", **QWEN), dtype=torch.float32).cuda()
    policy = add_adapter(model, "random", AdapterOptions(r=8))
    stir(policy, 0.02)
    for name, weight in policy.named_parameters():
        if "lora" not in name:
            weight.data = weight.data.bfloat16().to(dtype)  # the same base in both
    return ready_to_train(policy)


def scored(policy, batches):
    """The log-probability of each sampled token by row, and the gradients of a weighted sum of them."""
    weights = [[(7 * n + m) % 5 - 2.0 for m in range(len(row.ids))] for n, row in enumerate(group())]
    policy.zero_grad()
    found = {}
    for batch in batches:
        logprobs_BT = token_scores(policy, batch.to("cuda"), temperature=0.7).logprobs_BT
        (logprobs_BT * values_like(batch, weights).cuda()).sum().backward()
        for number, row in zip(batch.sequence_BT[:, 0].tolist(), logprobs_BT.detach(), strict=True):
            found[number] = row[: len(group()[number].ids)]
    gradients = torch.cat([w.grad.flatten() for w in policy.parameters() if w.requires_grad])
    return torch.cat([found[number] for number in sorted(found)]), gradients


def off(found, wanted):
    return ((found.float() - wanted.float()).norm() / wanted.float().norm()).item()


def test_a_tree_by_flash_attention_is_scored_as_rows_in_fp32():
    rows = group()
    exact, exact_gradients = scored(policy_of(torch.float32), pack(rows, 10_000))
    plain, plain_gradients = scored(policy_of(torch.bfloat16), pack(rows, 10_000))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # another kernel would be an error
        tree, tree_gradients = scored(policy_of(torch.bfloat16), pack_trees(rows, 10_000))
    print(f"off fp32: rows {off(plain, exact):.2e} {off(plain_gradients, exact_gradients):.2e}")
    print(f"off fp32: tree {off(tree, exact):.2e} {off(tree_gradients, exact_gradients):.2e}")
    assert off(tree, exact) < 1.5 * off(plain, exact) < 0.01
    assert off(tree_gradients, exact_gradients) < 1.5 * off(plain_gradients, exact_gradients) < 0.1


def test_adapters_in_bf16_are_as_close_to_fp32_as_pefts():
    rows = group()
    exact, exact_gradients = scored(policy_of(torch.float32), pack(rows, 10_000))
    ours = policy_of(torch.bfloat16)
    theirs = copy.deepcopy(ours)
    for module in theirs.modules():
        if hasattr(module, "lora_A") and module.lora_A:
            module.__class__ = type(module).__bases__[1]
    found, gradients = scored(ours, pack(rows, 10_000))
    plain, plain_gradients = scored(theirs, pack(rows, 10_000))
    print(f"off fp32: ours {off(found, exact):.2e} {off(gradients, exact_gradients):.2e}")
    print(f"off fp32: PEFT {off(plain, exact):.2e} {off(plain_gradients, exact_gradients):.2e}")
    assert off(found, exact) < 1.3 * off(plain, exact)
    assert off(gradients, exact_gradients) < 1.3 * off(plain_gradients, exact_gradients)


def test_logits_are_those_of_fp32():
    torch.manual_seed(0)
    head = torch.nn.Linear(512, 4096, bias=False).cuda().bfloat16()
    hidden = torch.randn(64, 512, device="cuda").bfloat16()
    exact = hidden.double() @ head.weight.double().T
    assert off(fp32_logits(head, hidden).double(), exact) < 1e-6 < off(head(hidden).double(), exact)


@pytest.fixture(scope="module")
def four_bit(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("four_bit") / "policy"
    create_policy(str(tiny / "base"), folder, AdapterOptions(r=4), quantize=True, dtype="bfloat16")
    return folder


def test_a_run_trains_resumes_and_is_the_same(tiny, tmp_path):
    whole, parts = (tiny_options(tiny, tmp_path / name / "run", max_steps=2, eval_every=0) for name in ("a", "b"))
    train(whole)
    train(replace(parts, max_steps=1))
    train(parts)
    for one, other in zip(read_stats(whole.run_dir), read_stats(parts.run_dir), strict=True):
        assert one.rewards == other.rewards
        assert one.training["mismatch_mean_abs"] < 1e-4  # fp32
        assert one.training["grad_norm"] == pytest.approx(other.training["grad_norm"], rel=1e-4)


def test_a_four_bit_policy_trains_and_merges(four_bit, tiny, tmp_path):
    options = tiny_options(tiny, tmp_path / "run", policy=four_bit, max_steps=2, eval_every=0)
    train(options)
    for row in read_stats(options.run_dir):
        assert row.training["mismatch_mean_abs"] < 0.05
        assert row.training["grad_norm"] > 0
    merge_lora.main(merge_lora.Options(options.run_dir, tmp_path / "merged"))


def test_out_of_memory_halves_the_micro_batches_and_changes_no_gradient():
    """Real: the allocator may take less than micro-batches of 20,000 tokens need, and more than those of 10,000."""
    rows = group(prompt=200, lengths=(1800,) * 10)
    episodes = [
        replace(
            EPISODE, id=f"q/{n}", ids=row.ids, mask=row.mask, logprobs=tuple(-6.9 * m for m in row.mask), turns=(),
            rewards={"made": float(n % 2)},
        )
        for n, row in enumerate(rows)
    ]  # fmt: skip

    def updated(budget):
        learner, options = Learner(policy_of(torch.bfloat16)), UpdateOptions(memory=MemoryOptions(token_budget=budget))
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        figures = update(learner, prepare(episodes, options), UpdateContext(options, 1.0, share_prompts=False))
        return figures["grad_norm"], learner.lowered_budget, torch.cuda.max_memory_allocated()

    (wanted, _, small), (_, none, large) = updated(10_000), updated(20_000)
    assert none is None
    assert small < large
    torch.cuda.set_per_process_memory_fraction((small + large) / 2 / torch.cuda.get_device_properties(0).total_memory)
    try:
        norm, lowered, _ = updated(20_000)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert lowered == 10_000
    assert norm == pytest.approx(wanted, rel=1e-3)
