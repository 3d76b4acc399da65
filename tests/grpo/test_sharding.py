"""A policy that is sharded, by two processes or by one, comes to what a plain Learner comes to.

And each process really holds only its part.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file

from forage.grpo import training
from forage.grpo.learner import Learner
from forage.grpo.sharding import check_split
from forage.policy.adapters import adapter_path
from forage.policy.packing import pack
from forage.policy.policy import packed_layers
from forage.processes import check_sharding
from tests import ROOT
from tests.refusals import refused
from tests.sharding_worker import (
    bf16_policy,
    likely,
    marks,
    micro_batches,
    of_base,
    prompt_updates,
    tiny_policy,
    update,
)
from tests.tiny_training import tiny_options, train

pytestmark = pytest.mark.timeout(900)  # the first test waits for two processes that do all the work
SHARDINGS = ("none", "fsdp2", "zero2", "zero3")
OFFLOADED = ("zero2+optimizer", "zero3+optimizer", "zero3+all")
SPLIT = ("none-split", "zero2-split", "fsdp2-split")
PROMPTS = ("none-prompts", "fsdp2-prompts", "zero2-prompts", "zero3-prompts", "zero3+all-prompts")
BF16 = [f"{name}-bf16" for name in SHARDINGS]
BOTH = [(processes, name) for processes in (2, 1) for name in (*SHARDINGS, *OFFLOADED)]
ALONE = ("fsdp2", "zero3+all")  # of what one process does by itself too, those that change its weights' form most
FOUR_BIT = [(processes, f"{name}-4bit") for processes, name in BOTH if processes == 2 or name in ALONE]
SHARED_PROMPTS = [(2, name) for name in PROMPTS] + [(1, f"{name}-prompts") for name in ALONE]
TITLES = {
    "none": "plain data parallelism", "fsdp2": "FSDP2", "zero2": "ZeRO-2", "zero3": "ZeRO-3",
    "zero2+optimizer": "ZeRO-2, optimizer on the CPU", "zero3+optimizer": "ZeRO-3, optimizer on the CPU",
    "zero3+all": "ZeRO-3, optimizer on the CPU, weights on the CPU",
}  # fmt: skip


def start(folder, *names, processes):
    """One process is started as users start it, without a launcher."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    command = [sys.executable, "-m", *(launcher if processes > 1 else []), "tests.sharding_worker", folder, *names]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*map(str, command)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """By the number of processes, the folder with what they found."""
    folders = {processes: tmp_path_factory.mktemp("sharding") for processes in (1, 2)}
    for processes, folder in folders.items():
        tiny_policy(checkpointing=False).unload().save_pretrained(folder / "base")
        names = [name for count, name in (*BOTH, *FOUR_BIT, *SHARED_PROMPTS) if count == processes]
        start(folder, *names, *((*SPLIT, *BF16) if processes == 2 else ()), processes=processes)
    return folders


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


def found(folder, name):
    return json.loads((folder / name / "found.json").read_text())


def tensors(folder, name, prefix):
    there = load_file(folder / name / "tensors.safetensors")
    return {name.removeprefix(prefix): tensor for name, tensor in there.items() if name.startswith(prefix)}


def in_parts(name):
    """Whether each process has only its part of the weights."""
    return name.startswith(("zero3", "fsdp2"))


def assert_close(got, expected):
    assert got.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight, atol=1e-6, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "name"), BOTH)
def test_each_process_holds_its_part(ran, processes, name):
    policy = tiny_policy()
    model = sum(weight.numel() for weight in policy.parameters())
    trained = sum(weight.numel() for weight in policy.parameters() if weight.requires_grad)
    for held_model, held_state in found(ran[processes], name)["held"]:
        assert held_model == pytest.approx(model / (processes if in_parts(name) else 1), rel=0.05)
        assert held_state == pytest.approx(trained / (1 if name == "none" else processes), rel=0.2)
    assert found(ran[processes], name)["title"].endswith(TITLES[name])


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "name"), BOTH)
def test_scores_norms_updates_and_the_published_adapter_are_those_of_one_process(ran, alone, processes, name):
    before, norms, (first, second) = alone
    torch.testing.assert_close(tensors(ran[processes], name, "before")[""], before, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tensors(ran[processes], name, "reference")[""], before, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tensors(ran[processes], name, "likely")[""], likely(Learner(tiny_policy())))
    by_one = marks(Learner(tiny_policy()), ran[processes] / "start")
    torch.testing.assert_close(tensors(ran[processes], name, "marks")[""], by_one, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tensors(ran[processes], name, "base")[""], of_base(Learner(tiny_policy())))
    assert found(ran[processes], name)["norms"] == pytest.approx(norms, rel=1e-5)
    assert_close(tensors(ran[processes], name, "first."), first)
    assert_close(tensors(ran[processes], name, "second."), second)
    assert_close(tensors(ran[processes], name, "rolled back."), first)
    assert found(ran[processes], name)["bad norm"] in ("nan", "inf")  # which left no trace
    published = PeftModel.from_pretrained(
        tiny_policy(checkpointing=False).unload(), adapter_path(ran[processes] / name, 2)
    )
    assert_close(get_peft_model_state_dict(published), second)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "name"), FOUR_BIT)
def test_over_a_4_bit_base_too(ran, processes, name):
    """The plain learner has bytes; where weights are sharded, the same bytes are called bf16."""
    learner = Learner(tiny_policy(four_bit=ran[processes] / "base"))
    assert {layer.weight.dtype for layer in packed_layers(learner.policy)} == {torch.uint8}
    with torch.no_grad():
        before_BT = learner.score(micro_batches(1)[0], 1.0).logprobs_BT
    gathered = tensors(ran[processes], name, "")
    torch.testing.assert_close(gathered.pop("before"), before_BT, atol=1e-6, rtol=1e-6)
    norms = [update(learner, step) for step in (1, 2)]
    assert found(ran[processes], name)["norms"] == pytest.approx(norms, rel=1e-5)
    # Gradients are compared by their mean: AdamW's steps are as long for gradients that are nothing but rounding.
    weights = learner.optimizer.param_groups[0]["params"]
    means = {str(n): learner.optimizer.state[weight]["exp_avg"] for n, weight in enumerate(weights)}
    assert_close(gathered, means)
    whole = sum(weight.numel() * weight.element_size() for weight in learner.policy.parameters())
    for held_bytes in found(ran[processes], name)["bytes"]:
        assert held_bytes == pytest.approx(whole / (processes if in_parts(name) else 1), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "name"), BOTH)
def test_a_checkpoint_goes_on_exactly_under_the_same_sharding_and_as_one_process(ran, alone, processes, name):
    told = found(ran[processes], name)
    assert (told["nothing yet"], told["loaded"]) == (None, [1, {"extra": 1}])
    assert told["resumed"]
    assert told["random"]
    learner = Learner(tiny_policy(seed=3))
    assert learner.load(ran[processes] / name / "state") == (1, {"extra": 1})
    update(learner, 2)
    assert_close(get_peft_model_state_dict(learner.policy), alone[2][1])
    kinds = {path.suffix for path in (ran[processes] / name).rglob("*") if path.is_file()}
    assert kinds == {".safetensors", ".json"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLIT)
def test_rows_shared_by_processes_come_to_the_same(ran, alone, name):
    before, norms, adapters = alone
    learner = Learner(tiny_policy())
    scores = learner.score(micro_batches(1)[0], 1.0)
    torch.testing.assert_close(tensors(ran[2], name, "before")[""], before, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(tensors(ran[2], name, "entropy")[""], scores.entropy_BT.detach(), atol=1e-6, rtol=1e-6)
    assert found(ran[2], name)["norms"] == pytest.approx(norms, rel=1e-5)
    assert_close(tensors(ran[2], name, "second."), adapters[1])
    assert found(ran[2], name)["sums"] == 3


def test_rows_that_cannot_be_shared_are_refused():
    config = tiny_policy().config
    with refused("--sequence-parallel 4 does not divide the model's 2 key-value heads"):
        check_split(config, 4, 4)
    with refused("--sequence-parallel 2 does not divide the 3 processes"):
        check_split(config, 2, 3)
    config.layer_types = ["full_attention", "sliding_attention"]
    with refused("sliding_attention"):
        check_split(config, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "name"), SHARED_PROMPTS)
def test_prompts_computed_once_give_what_rows_of_their_own_give(ran, processes, name):
    """With activations recomputed, and in two processes of which one has a batch less than the other."""
    plain = prompt_updates(Learner(tiny_policy(checkpointing=False)), pack)
    assert found(ran[processes], name)["norms"] == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
def test_logits_over_a_bf16_base_are_in_fp32_under_every_sharding(ran, monkeypatch):
    """Libraries that shard it hook into the output layer."""
    learner, first = Learner(bf16_policy()), micro_batches(1)[0]
    expected = learner.score(first, 1.0).logprobs_BT.detach()
    norms = [update(learner, step) for step in (1, 2)]
    monkeypatch.setattr("forage.policy.logprobs.fp32_logits", lambda head, hidden: head(hidden).float())
    rounded = Learner(bf16_policy()).score(first, 1.0).logprobs_BT.detach()
    assert (rounded - expected).abs().max() > 1e-3  # so it would show
    for name in BF16:
        torch.testing.assert_close(torch.tensor(found(ran[2], name)["before"]), expected, atol=1e-5, rtol=0)
        assert found(ran[2], name)["norms"] == pytest.approx(norms, rel=5e-3)


def test_what_can_not_be_sharded_is_refused(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with refused("--sequence-parallel 2 needs processes to share the work; start with torchrun"):
        check_sharding("none", 2)
    for sharding in SHARDINGS:
        check_sharding(sharding)
    with refused(r"--offload all does not work with --sharding zero2; give --sharding zero3$"):
        check_sharding("zero2", offload="all")
    monkeypatch.setenv("WORLD_SIZE", "2")
    says = "--sequence-parallel does not work with --sharding zero3; give --sharding fsdp2"
    with refused(says):
        check_sharding("zero3", 2)


def test_a_run_leaves_no_connections_and_the_next_one_makes_its_own(tiny, tmp_path, monkeypatch):
    """Here of one process: torch warns of a group that is left, and NCCL may wait for it."""
    monkeypatch.setenv("LOCAL_RANK", "0")  # set by joining, and not for the tests after this one
    joined, real = [], training.join_processes

    def join():
        real()
        joined.append(dist.is_initialized())

    monkeypatch.setattr(training, "join_processes", join)
    for steps in (1, 2):
        train(tiny_options(tiny, tmp_path / "run", sharding="fsdp2", max_steps=steps, eval_every=0))
        assert not dist.is_initialized()
    assert joined == [True, True]
