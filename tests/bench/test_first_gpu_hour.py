"""The first hour on a GPU: verdicts by what ran, steps that users could type, and a walk through them on a CPU."""

import shlex

import pytest

from bench import first_gpu_hour
from bench.first_gpu_hour import (
    Options,
    Otherwise,
    Outcome,
    Step,
    lacking,
    main,
    run,
    settings,
    steps,
)
from forage.stack_settings import check_names, check_values
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


def test_a_step_that_fails_stops_only_those_that_need_it():
    first, second, third = (
        Step(name, "true", ENOUGH, two, needs=needs) for name, needs in (("a", ""), ("b", "a"), ("c", ""))
    )
    for verdict, why in {"failed": "it needs a", "left out: no vLLM": "it needs a", "not as expected": ""}.items():
        assert lacking(second, [Outcome(first, verdict)]) == why
    assert not lacking(third, [Outcome(first, "failed")])


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
