"""Two processes that share a policy come to what one process comes to, and each really holds only its part."""

import json
import os
import subprocess
import sys

import pytest
import torch
from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file

from forage.errors import UserError
from forage.grpo import strategies
from forage.grpo.launch import check_sharding
from forage.grpo.learner import Learner
from forage.grpo.lockstep import LockstepScorer, nothing_sampled
from forage.grpo.sequence_parallel import check_split
from forage.policy.adapters import adapter_path
from forage.policy.four_bit import packed_layers
from tests import ROOT
from tests.sharding_worker import micro_batches, one_row, tiny_policy, update

pytestmark = pytest.mark.timeout(900)  # the first test waits for two processes that do all the work
SHARDINGS = ("none", "fsdp2", "zero2", "zero3")
# Policies of earlier versions stored 4-bit weights as bf16.
FOUR_BIT = (*(f"{sharding}-4bit" for sharding in SHARDINGS), "fsdp2-4bitbefore", "zero3-4bitbefore")
SPLIT = ("none-split", "zero2-split", "fsdp2-split")


def torchrun(*arguments, processes=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, arguments)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharding")
    tiny_policy(checkpointing=False).unload().save_pretrained(folder / "base")
    torchrun("tests/sharding_worker.py", folder, *SHARDINGS, *FOUR_BIT, *SPLIT)
    return folder


@pytest.fixture(scope="module")
def alone():
    """(log-probabilities before, norms of two updates, adapters after each) of one process."""
    learner = Learner(tiny_policy())
    with torch.no_grad():
        before = learner.score(micro_batches(1)[0], 1.0).logprobs_BT
    norms, adapters = [], []
    for step in (1, 2):
        norms.append(update(learner, step))
        adapters.append({name: w.clone() for name, w in get_peft_model_state_dict(learner.policy).items()})
    return before, norms, adapters


def found(ran, sharding):
    return json.loads((ran / sharding / "found.json").read_text())


def tensors(ran, sharding, prefix):
    there = load_file(ran / sharding / "tensors.safetensors")
    return {name.removeprefix(prefix): tensor for name, tensor in there.items() if name.startswith(prefix)}


def assert_close(got, expected):
    assert got.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight, atol=1e-6, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.slow
def test_each_process_holds_its_part(ran):
    policy = tiny_policy()
    model = sum(weight.numel() for weight in policy.parameters())
    trained = sum(weight.numel() for weight in policy.parameters() if weight.requires_grad)
    for sharding in SHARDINGS:
        for held_model, held_state in found(ran, sharding)["held"]:
            if sharding in ("none", "zero2"):
                assert held_model == model
            else:
                assert held_model == pytest.approx(model / 2, rel=0.05)
            if sharding == "none":
                assert held_state == trained
            else:
                assert held_state == pytest.approx(trained / 2, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_scores_norms_and_updates_are_those_of_one_process(ran, alone, sharding):
    before, norms, (first, second) = alone
    torch.testing.assert_close(tensors(ran, sharding, "before")[""], before, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tensors(ran, sharding, "reference")[""], before, atol=1e-6, rtol=1e-6)
    assert found(ran, sharding)["norms"] == pytest.approx(norms, rel=1e-5)
    assert_close(tensors(ran, sharding, "first."), first)
    assert_close(tensors(ran, sharding, "second."), second)
    assert_close(tensors(ran, sharding, "rolled back."), first)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUR_BIT)
def test_over_a_4_bit_base_too(ran, name):
    """One process has bytes; where weights are sharded, the same bytes are called bf16."""
    learner = Learner(tiny_policy(four_bit=ran / "base"))
    assert {layer.weight.dtype for layer in packed_layers(learner.policy)} == {torch.uint8}
    with torch.no_grad():
        before_BT = learner.score(micro_batches(1)[0], 1.0).logprobs_BT
    gathered = tensors(ran, name, "")
    torch.testing.assert_close(gathered.pop("before"), before_BT, atol=1e-6, rtol=1e-6)
    norms = [update(learner, step) for step in (1, 2)]
    assert found(ran, name)["norms"] == pytest.approx(norms, rel=1e-5)
    # Gradients are compared by their mean: AdamW's steps are as long for gradients that are nothing but rounding.
    means = {str(n): learner.optimizer.state[weight]["exp_avg"] for n, weight in enumerate(learner.weights)}
    assert_close(gathered, means)
    whole = sum(weight.numel() * weight.element_size() for weight in learner.policy.parameters())
    for held_bytes in found(ran, name)["bytes"]:
        assert held_bytes == pytest.approx(whole / (1 if name.startswith(("none", "zero2")) else 2), rel=0.1)


def test_before_weights_are_sharded_their_scales_are_on_the_processs_device(monkeypatch, tmp_path):
    """The device meta stands in for a GPU: there DeepSpeed moves the weights itself, but not their scales."""
    tiny_policy(checkpointing=False).unload().save_pretrained(tmp_path)
    policy = tiny_policy(four_bit=tmp_path)
    monkeypatch.setattr(strategies, "process_device", lambda: torch.device("meta"))
    layers = list(packed_layers(policy))
    strategies.make_shardable(policy)
    assert len(layers) == 14
    assert {layer.weight.dtype for layer in layers} == {torch.bfloat16}
    assert {layer.quant_state.absmax.device.type for layer in layers} == {"meta"}
    assert {layer.weight.quant_state.state2.absmax.device.type for layer in layers} == {"meta"}


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_checkpoint_goes_on_exactly_under_the_same_sharding_and_as_one_process(ran, alone, sharding):
    assert found(ran, sharding)["nothing yet"] is None
    assert found(ran, sharding)["loaded"] == [1, {"extra": 1}]
    assert found(ran, sharding)["resumed"]
    assert found(ran, sharding)["random"]
    learner = Learner(tiny_policy(seed=3))
    assert learner.load(ran / sharding / "state") == (1, {"extra": 1})
    update(learner, 2)
    assert_close(get_peft_model_state_dict(learner.policy), alone[2][1])
    kinds = {path.suffix for path in (ran / sharding).rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json"}


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_the_published_adapter_is_a_whole_one(ran, alone, sharding):
    base = tiny_policy(checkpointing=False).unload()
    policy = PeftModel.from_pretrained(base, adapter_path(ran / sharding, 2))
    assert_close(get_peft_model_state_dict(policy), alone[2][1])


@pytest.mark.slow
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_gradient_that_is_none_changes_nothing_and_is_told(ran, sharding):
    assert found(ran, sharding)["bad norm"] in ("nan", "inf")


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLIT)
def test_rows_shared_by_processes_come_to_the_same(ran, alone, name):
    before, norms, adapters = alone
    learner = Learner(tiny_policy())
    scores = learner.score(micro_batches(1)[0], 1.0)
    torch.testing.assert_close(tensors(ran, name, "before")[""], before, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tensors(ran, name, "entropy")[""], scores.entropy_BT.detach(), atol=1e-6, rtol=1e-6)
    row_BT = learner.score(one_row(), 1.0).logprobs_BT.detach()
    torch.testing.assert_close(tensors(ran, name, "one row")[""], row_BT, atol=1e-6, rtol=1e-6)
    assert found(ran, name)["norms"] == pytest.approx(norms, rel=1e-5)
    assert_close(tensors(ran, name, "second."), adapters[1])
    assert found(ran, name)["sums"] == 3


def test_rows_that_cannot_be_shared_are_refused():
    config = tiny_policy().config
    with pytest.raises(UserError, match="--sequence-parallel 4 does not divide the model's 2 key-value heads"):
        check_split(config, 4, 4)
    with pytest.raises(UserError, match="--sequence-parallel 2 does not divide the 3 processes"):
        check_split(config, 2, 3)
    config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(UserError, match="sliding_attention"):
        check_split(config, 2, 2)


@pytest.mark.slow
def test_between_processes(ran):
    there = found(ran, "none")
    assert there["sums"] == {"terminated": [1.0, 2.0], "kl_max": [1.0, 1.0], "kl_min": [0.0, 1.0]}
    assert there["same"] == [{"from": 0}, {"from": 0}]


def test_a_batch_of_which_nothing_counts_scores_zero_and_still_has_a_backward_pass():
    scores = LockstepScorer(policy := tiny_policy())(nothing_sampled(micro_batches(1)[0]), 1.0)
    assert scores.logprobs_BT.shape == scores.entropy_BT.shape == (2, 9)
    assert not scores.logprobs_BT.any()
    scores.logprobs_BT.sum().backward()
    assert all(
        weight.grad is not None and not weight.grad.any() for weight in policy.parameters() if weight.requires_grad
    )


def test_sharding_without_processes_is_refused(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UserError, match="--sharding zero3 needs processes to share the work; start with torchrun"):
        check_sharding("zero3")
    with pytest.raises(UserError, match="--sequence-parallel 2 needs processes"):
        check_sharding("none", 2)
    check_sharding("none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    says = "--sequence-parallel does not work with --sharding zero3; give --sharding fsdp2"
    with pytest.raises(UserError, match=says):
        check_sharding("zero3", 2)
