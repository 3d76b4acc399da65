"""The first hour on a GPU: verdicts by what ran, steps that users could type, and a walk through them on a CPU."""

import shlex
from dataclasses import replace

import pytest

from bench import first_gpu_hour
from bench.first_gpu_hour import (
    Options,
    Otherwise,
    Outcome,
    Step,
    answered,
    lacking,
    learnt_by,
    main,
    rows_of,
    run,
    settings,
    steps,
    warm_start_of,
)
from forage.files import write_jsonl
from forage.policy.card import PolicyCard, write_policy_card
from forage.runs.stats import write_stats
from forage.stack_settings import check_names, check_values
from tests.factories import STATS
from tests.pages import parsed, python_call

ENOUGH = "at least one"


def two(said):
    if said.count("x") < 2:
        raise Otherwise("one x")
    return "two x"


@pytest.mark.parametrize(
    ("command", "verdict", "found"),
    [
        ("echo x x", "as expected", "two x"),
        ("echo x", "not as expected", "one x"),
        ("echo a b; echo no room >&2; exit 3", "failed", "no room"),
        ("echo 'a 2 (bar 3, SHORT); b 5 (stated)'; exit 1", "not as expected", "a 2 (bar 3, SHORT); b 5 (stated)"),
        ("sleep 60", "failed", "it had no end after 0.5 s"),
    ],
)
def test_a_verdict_is_that_of_what_ran(tmp_path, monkeypatch, command, verdict, found):
    if command == "sleep 60":
        monkeypatch.setattr(first_gpu_hour, "LIMIT", 0.5)
    outcome = run(Step("made", command, ENOUGH, two), {}, tmp_path)
    assert (outcome.verdict, outcome.found) == (verdict, found)


def test_what_comes_before_is_no_part_of_what_is_judged(tmp_path):
    outcome = run(Step("made", 'echo "$LETTER"', ENOUGH, two, {"LETTER": "x"}, before="echo x"), {}, tmp_path)
    assert (outcome.verdict, list(outcome.tail)) == ("not as expected", ["x", "x"])
    outcome = run(Step("made", "echo x x", ENOUGH, two, before="echo no plan; false"), {}, tmp_path)
    assert (outcome.verdict, outcome.found) == ("failed", "no plan")


def test_a_step_that_fails_stops_only_those_that_need_it():
    first, second, third = (
        Step(name, "true", ENOUGH, two, needs=needs) for name, needs in (("a", ""), ("b", "a"), ("c", ""))
    )
    for verdict, why in {"failed": "it needs a", "left out: no vLLM": "it needs a", "not as expected": ""}.items():
        assert lacking(second, [Outcome(first, verdict)]) == why
    assert not lacking(third, [Outcome(first, "failed")])


# What came of a step


def test_adapters_mismatch_and_gradients_by_hand(tmp_path):
    def after(name, adapters, *figures):
        for number in range(adapters):
            (tmp_path / name / "adapters" / f"v{number:06d}").mkdir(parents=True)
        for step, training in enumerate(figures):
            write_stats(tmp_path / name, replace(STATS, step=step, training=training))
        return learnt_by(tmp_path / name, 2)

    one, flat = {"grad_norm": 0.5, "mismatch_kl": 0.009}, {"grad_norm": 0.0}
    assert after("good", 3, one, flat) == "3 adapters, mismatch_kl 0.009 at most, norm of the gradient 0.5, 0"
    with pytest.raises(Otherwise, match=r"mismatch_kl 0\.011"):
        after("far", 3, one, one | {"mismatch_kl": 0.011})
    with pytest.raises(Otherwise, match="2 adapters"):
        after("short", 2, one, one)
    with pytest.raises(Otherwise, match="no step had a gradient"):
        after("flat", 3, flat, flat)


def test_a_warm_start_is_in_four_bits_and_its_loss_falls(tmp_path):
    def after(last, quantized):
        (tmp_path / "warm").mkdir(exist_ok=True)
        rows = [{"step": step, "held_out_loss": loss} for step, loss in ((0, 1.5), (20, last))]
        write_jsonl(tmp_path / "warm" / "stats.jsonl", rows)
        base = tmp_path / "policy" / "base"
        base.mkdir(parents=True, exist_ok=True)
        write_policy_card(PolicyCard(base.parent, str(base), "full", quantized), base.parent)
        return warm_start_of(tmp_path)

    assert after(0.5, True) == "4 bits; held-out loss 1.500, after 20 updates 0.500"
    for last, quantized in ((1.5, True), (0.5, False)):
        with pytest.raises(Otherwise):
            after(last, quantized)


def test_rows_and_answers(tmp_path):
    path = tmp_path / "gpu.json"
    path.write_text('{"rows": {"machine": {"device": "cpu"}, "update": {"tokens_per_second": 1234.4}}}')
    assert rows_of(path) == "update 1,234 tokens/s"
    path.write_text('{"rows": {"machine": {"device": "cpu"}, "update": {"failed": "no room"}}}')
    with pytest.raises(Otherwise, match=r"1 of 2 rows failed: update \(no room\)"):
        rows_of(path)
    assert answered("search 1: gout\n  1 Gout\nanswer\n  Crystals.\n") == "Crystals."
    with pytest.raises(Otherwise, match="without a search"):
        answered("answer\n  Crystals.\n")
    with pytest.raises(Otherwise, match="no answer: too long"):
        answered("search 1: gout\nno answer: too long\n")


# The steps


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("dry", [True, False])
def test_the_steps_are_commands_that_exist_with_settings_that_are_read(tmp_path, dry, there):
    options = Options(dry)
    told, found = settings(options, tmp_path), steps(options, tmp_path, there=there)
    for step in found:
        given = {name: value for name, value in (told | step.settings).items() if name != "VLLM_SERVER_DEV_MODE"}
        check_names(given)
        check_values(given)
        call = python_call(shlex.split(step.command))
        assert (
            step.command.startswith("scripts/stack.sh ") or call[0] == "forage.extras.doctor.__main__" or parsed(*call)
        )
    assert {step.needs for step in found} - {""} <= {step.name for step in found}
    assert [step.name for step in found if step.left_out] == {
        (False, True): [], (True, True): ["server asleep during updates"],
    }.get((dry, there), ["served, nf4", "served, bf16", "server asleep during updates"])  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_dry_run_on_the_tiny_model(tiny_base, tmp_path, monkeypatch):
    """It writes noise: no episode is rewarded and no question answered, and the report says so."""
    monkeypatch.setattr(first_gpu_hour, "VLLM", tmp_path / "none")
    with pytest.raises(SystemExit) as ended:
        main(Options(True, str(tiny_base), tmp_path / "work"))
    assert ended.value.code == 1
    text = (tmp_path / "work" / "report.md").read_text()
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert {name: verdict.partition(":")[0] for name, verdict, *_ in cells} == {
        "doctor": "as expected", "figures": "as expected", "policy": "as expected", "served, nf4": "left out",
        "served, bf16": "left out", "lock-step": "not as expected", "server asleep during updates": "left out",
        "merge": "as expected", "chat": "not as expected",
    }  # fmt: skip
    found = {name: found for name, _, _, found, *_ in cells}
    assert found["policy"].startswith("4 bits; held-out loss ")
    assert found["lock-step"].startswith("2 adapters, and no step had a gradient")
    assert "no answer: " in found["chat"]
