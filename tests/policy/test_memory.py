"""What fits into a card: plans for the sizes that people have, their flags, and a refusal that says the way out."""

import json
import subprocess
import sys
from dataclasses import replace

import httpx
import pytest

from forage.arguments import flags_of
from forage.engines.sleep_routes import without_sleep_mode
from forage.errors import UserError
from forage.grpo.options import TrainOptions
from forage.policy.footprint import GIB, Batch, kv_bytes, local_sampling, resident, training, weight_bytes
from forage.policy.memory import (
    MIN_SEQUENCES,
    Options,
    Work,
    engine,
    halves,
    longest_episode,
    main,
    plan,
    training_settings,
    usable,
    warm_start,
)
from forage.policy.shapes import KNOWN
from tests import ROOT

MIB = 2**20
SEVEN, SMALL = KNOWN["Qwen2.5-7B"], KNOWN["SmolLM2-135M"]
WORK = Work()


def held(found):
    return found.training.footprint.total + found.server.footprint.total


def test_a_card_of_24_gib_holds_trainer_and_server_of_a_7b_in_4_bits():
    found = plan(SEVEN, 24, WORK)
    assert (found.arrangement, found.cards, found.serve) == ("awake", 1, "nf4")
    assert found.gradient_checkpointing
    assert held(found) <= usable(24) < 24 * GIB
    assert found.server.footprint.total <= found.vllm_share * 24 * GIB
    assert found.server.sequences >= MIN_SEQUENCES
    # Its weights alone are 14.2 GiB, so it doesn't fit beside the trainer in bf16, but it does in turns.
    assert plan(SEVEN, 24, WORK, "bf16").arrangement != "awake"


@pytest.mark.parametrize(("gib", "again"), [(40, True), (48, False), (80, False)])
def test_a_larger_card_serves_bf16_and_one_larger_still_keeps_activations(gib, again):
    found = plan(SEVEN, gib, WORK)
    assert (found.arrangement, found.serve, found.gradient_checkpointing) == ("awake", "bf16", again)
    assert held(found) <= usable(gib)


def test_a_smaller_card_holds_them_in_turns_or_not_at_all():
    assert plan(SEVEN, 16, WORK).arrangement == "asleep"
    found = plan(SEVEN, 12, WORK)
    assert (found.arrangement, found.cards) == ("apart", 2)
    assert max(found.training.footprint.total, found.server.footprint.total) <= usable(12)
    with pytest.raises(UserError, match=r"no plan fits cards of 6 GiB: training takes 7\.\d GiB .* smaller model"):
        plan(SEVEN, 6, WORK)


def test_what_is_refused_for_longer_episodes_fits_when_they_are_shorter():
    with pytest.raises(UserError, match="lower --max-tokens"):
        plan(SEVEN, 10, replace(WORK, max_tokens=16384))
    assert plan(SEVEN, 10, replace(WORK, max_tokens=1024)).cards == 2


def test_a_base_in_bf16_is_served_in_bf16():
    assert plan(SMALL, 8, replace(WORK, precision="bf16"), "nf4").serve == "bf16"


def test_several_cards_for_a_trainer_that_one_does_not_hold():
    found = plan(KNOWN["Qwen2.5-32B"], 24.5, WORK)
    assert found.arrangement == "apart"
    assert found.training.processes > 1
    assert "--sharding zero3" in found.training.flags


@pytest.mark.parametrize("gib", [12, 16, 24, 48, 80])
def test_more_room_never_gives_smaller_micro_batches(gib):
    """With the same choice of checkpointing."""
    for again in (False, True):
        less, more = (training_settings(SEVEN, WORK, room * GIB, checkpointing=again) for room in (gib, gib + 8))
        assert less is None or more.token_budget >= less.token_budget
        assert less is None or less.footprint.total <= gib * GIB


def test_what_is_given_stays():
    found = training_settings(SEVEN, WORK, 24 * GIB, budget=3000, checkpointing=True)
    assert (found.token_budget, found.gradient_checkpointing) == (3000, True)
    assert training_settings(SEVEN, WORK, 12 * GIB, checkpointing=False) is None


def test_the_longest_episode_trains_and_a_longer_one_does_not():
    longest = longest_episode(SEVEN, 24, WORK)
    fits, over = (
        training(SEVEN, WORK.lora, "nf4", Batch(1, tokens), checkpointing=True) for tokens in (longest, longest + 128)
    )
    assert fits.total <= usable(24) < over.total


@pytest.mark.parametrize("gib", [12, 24, 80])
def test_the_warm_start_plays_with_the_policy_it_trains(gib):
    """There is one base, and the larger of an update and of playing with as many slots as fit beside what stays."""
    found, update = warm_start(SEVEN, WORK, gib), training_settings(SEVEN, WORK, usable(gib)).footprint
    kept = resident(SEVEN, WORK.lora, "nf4")
    assert found.weights == weight_bytes(SEVEN, "nf4")
    assert found.total <= usable(gib)
    slot = kv_bytes(SEVEN) * 2049 + 28 * SEVEN.vocabulary
    alone = local_sampling(SEVEN, WORK.lora, "nf4", slots=0, longest=2048, merged=False)
    once = alone.activations + alone.dequantized
    slots = min(64, int((usable(gib) - kept.total - once) // slot))
    assert found.total == pytest.approx(max(update.total, kept.total + once + slots * slot), abs=8 * MIB)


def test_an_engine_takes_as_many_slots_as_fit_but_at_least_one():
    """14.2 GiB of weights leave room for 64 slots of 7 GiB on 48 GiB, for some on 24, for none on 12."""
    slot = kv_bytes(SEVEN) * 2049
    slots = [engine(SEVEN, WORK, usable(gib), merged=True).kv_cache / slot for gib in (48, 24, 12)]
    assert slots[0] == 64
    assert 50 < slots[1] < 64
    assert slots[2] == 1
    assert engine(SEVEN, WORK, usable(24), merged=True).total <= usable(24)
    assert engine(SEVEN, WORK, usable(12), merged=True).total > usable(12)
    assert engine(SEVEN, WORK, usable(12), merged=False).total <= usable(12)


def test_halves():
    assert list(halves(64, 16)) == [64, 32, 16]
    assert list(halves(3, 0)) == [3, 1]


# The command


def test_the_flags_exist(capsys):
    main(Options(gpu_gib=24))
    told = capsys.readouterr().out
    line = next(line for line in told.splitlines() if line.strip().startswith("training"))
    known = {flag.name.replace("[no-]", "") for flag in flags_of(TrainOptions)}
    given = [word for word in line.split() if word.startswith("--")]
    assert given == ["--token-budget", "--gradient-checkpointing"]
    assert set(given) <= known
    assert "--gpu-memory-utilization 0." in told
    assert "--kv-cache-memory-bytes" in told


def test_the_flags_of_a_card_used_in_turns_exist(capsys):
    main(Options(gpu_gib=16))
    line = next(line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("in turns"))
    trainer, server = line.split(";")
    known = {flag.name.replace("[no-]", "") for flag in flags_of(TrainOptions)}
    given = [word for word in trainer.split() if word.startswith("--")]
    assert given == ["--engine", "--vllm-sleep"]
    assert set(given) <= known
    # The same that a server without sleep mode is refused with.
    told = str(without_sleep_mode(httpx.AsyncClient()))
    assert {"--enable-sleep-mode", "VLLM_SERVER_DEV_MODE=1"} <= set(server.replace(",", "").split()) & set(
        told.replace(",", "").split()
    )


def test_json_is_the_plan(capsys):
    main(Options(gpu_gib=24, json=True))
    told = json.loads(capsys.readouterr().out)
    assert told["arrangement"] == "awake"
    assert told["server"]["serve"] == "nf4"


def test_a_table_is_printed_even_if_nothing_fits(capsys):
    with pytest.raises(UserError, match="no plan fits"):
        main(Options(gpu_gib=6))
    assert "weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options(gpu_gib=0), "--gpu-gib 0 must be over 0"),
        (Options(r=0), "--r 0 must be at least 1"),
        (Options(target_modules=("w1",)), "--target-modules w1 is no linear layer; give all-linear or q_proj"),
    ],
)
def test_bad_options(options, told):
    with pytest.raises(UserError, match=told):
        main(options)


def test_no_torch():
    code = "import sys\nfrom forage.policy.memory import Options, main\nmain(Options())\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
