"""The overlap benchmark: its line by hand, what it refuses, and every way for real on a tiny run."""

import sys
from itertools import pairwise

import pytest

from bench import overlap
from bench.asynchronous import Pace
from bench.overlap import BenchOptions, contained, line, main
from forage.errors import UserError
from forage.runs.waiting import Shares


def test_a_line_by_hand():
    """120 steps an hour of 2 x 15 episodes are one episode a second."""
    bench, pace = BenchOptions(batch_size=2, num_rollouts=15), Pace(5, 120.0, [], 3, 0.75)
    assert line(bench, pace, None) == "120.0 steps an hour, 1.00 episodes/s"
    assert line(bench, pace, Shares(trainer=0.62, workers=0.0, tail=0.04, count=2)).endswith(
        "; waiting: trainer 62%, workers 0%, for each other 4%; 75% of the steps by an older adapter; "
        "3 episodes dropped"
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_steps": 2}, "--max-steps 2: at least 3"),
        ({"workers": (1, 0)}, "--workers 1 0: each must be at least 1"),
        ({"alone": False, "workers": ()}, "leave nothing to run"),
        ({"rounds": 0}, "--rounds 0 must be at least 1"),
        ({"image": "grpo:there-is-none"}, "--image grpo:there-is-none: no Docker engine here has it; build it"),
    ],
)
def test_what_is_refused(wrong, said):
    with pytest.raises(UserError, match=said):
        BenchOptions(**wrong).check()


def test_a_container_may_write_into_the_run_and_the_data_alone(tmp_path):
    bench = BenchOptions(tmp_path / "data", tmp_path / "policy", image="grpo:cpu")
    command = contained(
        bench, tmp_path / "out", (sys.executable, "grpo_train.py", "--run-dir", tmp_path / "out" / "run")
    )
    mounts = [mount for word, mount in pairwise(command) if word == "--volume"]
    written = [f"{tmp_path}/{name}:{tmp_path}/{name}" for name in ("data", "out")]
    assert [mount for mount in mounts if not mount.endswith(":ro")] == written
    assert f"{tmp_path}/policy:{tmp_path}/policy:ro" in mounts
    assert command[-5:] == ("grpo:cpu", "python", "grpo_train.py", "--run-dir", tmp_path / "out" / "run")


def test_a_process_that_fails_is_told(tmp_path):
    with pytest.raises(UserError, match="turns: trainer failed: error: "):
        overlap.run(BenchOptions(tmp_path, tmp_path), "turns", 0, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_way_runs(tiny, capsys):
    bench = BenchOptions(tiny / "data", tiny / "policy", max_steps=3, batch_size=2, num_rollouts=2, workers=(2,))
    with pytest.raises(SystemExit):
        main(bench)
    printed = capsys.readouterr().out.splitlines()
    assert [row.split("  ")[0].strip() for row in printed[:3]] == ["turns", "shared", "2 workers"]
    assert "2 workers / turns, steps an hour" in printed[-1]
