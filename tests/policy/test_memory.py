"""What fits into cards: plans for the sizes that people have, which cards each takes, and what is refused."""

from dataclasses import replace

import pytest

from forage.errors import UserError
from forage.policy.footprint import CONTEXT, GIB, KNOWN
from forage.policy.memory import (
    MIN_SEQUENCES,
    Options,
    Work,
    main,
    plan,
    settings,
    share_out,
    usable,
)

SEVEN = KNOWN["Qwen/Qwen2.5-7B-Instruct"]
LARGE = "Qwen/Qwen2.5-32B-Instruct"
WORK = Work()
A24, A16, LARGER = 24564, 16380, 25088


@pytest.mark.parametrize(
    ("gib", "kind"), [(24, ("nf4", True)), (40, ("bf16", True)), (48, ("bf16", False)), (80, ("bf16", False))]
)
def test_one_card_for_trainer_and_server_of_a_7b(gib, kind):
    trainer, server = plan(SEVEN, gib, WORK, shared=True)
    assert (server.serve, trainer.gradient_checkpointing) == kind
    assert server.sequences >= MIN_SEQUENCES
    assert trainer.bytes + server.bytes <= usable(gib) < gib * GIB
    assert server.bytes <= server.share(gib) * gib * GIB


def test_a_card_each_or_no_plan():
    assert plan(SEVEN, 16, WORK, shared=True) is None
    trainer, server = plan(SEVEN, 12, WORK, shared=False)
    assert max(trainer.bytes, server.bytes) <= usable(12)
    assert plan(SEVEN, 6, WORK, shared=False) is None
    assert plan(SEVEN, 10, replace(WORK, max_tokens=16384), shared=False) is None
    assert plan(SEVEN, 10, replace(WORK, max_tokens=1024), shared=False)
    assert plan(KNOWN[LARGE], 24.5, WORK, shared=False) is None
    assert plan(KNOWN[LARGE], 24.5, WORK, shared=False, processes=4)


def test_a_trainer_beside_a_server_leaves_it_its_share():
    """Worked out by hand: of 24 GiB, 1 less .50 less .5 GiB / 24 GiB for CUDA itself is .479."""
    assert settings(Options((24 * 1024,), vllm_gpu_memory=0.5))[0]["PLAN_TRAIN_SHARE"] == "0.47"
    assert settings(Options((A24, A24)))[0]["PLAN_TRAIN_SHARE"] == ""  # a card each
    for gib in (24, 40, 48, 80):  # and has what the plan says it takes
        share, (trainer, server) = settings(Options((gib * 1024,)))[0], plan(SEVEN, gib, WORK, shared=True)
        most = float(share["PLAN_TRAIN_SHARE"]) * gib * GIB + CONTEXT
        assert trainer.bytes <= most <= (1 - server.share(gib)) * gib * GIB


# Cards


@pytest.mark.parametrize(
    ("there", "vllm", "train", "cards"),
    [
        (1, "", "", (0, (0,))), (2, "", "", (0, (1,))),
        (2, "1", "", (1, (0,))),
        (2, "1", "1", (1, (1,))), (4, "3", "0,1", (3, (0, 1))),
        (4, "", "", (0, (1, 2, 3))),
    ],
)  # fmt: skip
def test_the_cards_that_each_takes(there, vllm, train, cards):
    assert share_out(Options((A24,) * there, vllm_gpus=vllm, train_gpus=train)) == cards


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options((A16,)), r"does not fit into cards of 16\.0 GiB, one for both; take .*, or set VLLM_GPU_MEMORY"),
        (Options((LARGER,), base=LARGE, train_nodes=1), r"24\.5 GiB, one for vLLM and 1 for the trainer; take"),
        (Options((A24,), train_gpus="1"), r"there is no GPU 1 \(TRAIN_GPUS=1\); give numbers of nvidia-smi, 0 to 0"),
        (Options((A24,) * 4, vllm_gpus="0,1"), "VLLM_GPUS=0,1: the stack's server takes one GPU; give one"),
        (Options((A24,) * 2, train_gpus="1", train_processes=2), "TRAIN_PROCESSES=2 takes as many GPUs"),
        (Options(()), "nvidia-smi lists no GPU"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused(options, told):
    with pytest.raises(UserError, match=told):
        main(options)
