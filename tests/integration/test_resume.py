"""A training run that is killed ten times, at any moment, comes to what an undisturbed one comes to, bit for bit."""

import json
import random
import signal
import subprocess
import sys
from statistics import median

import pytest

from forage.policy.adapters import adapter_path, versions
from forage.runs.stats import read_stats, same_run, step_seconds
from tests import ROOT
from tests.tiny import make_tiny
from tests.tiny_training import tiny_args

STEPS, KILLS = 30, 10


def start(folder, run_dir, dying=()):
    command = [
        sys.executable, *dying, "-m", "tests.tiny_training", "train",
        *tiny_args(folder, run_dir, "--max-steps", str(STEPS)),
    ]  # fmt: skip
    log = (folder / f"{run_dir.parent.name}.log").open("a")
    return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def newest(run_dir):
    """Something that changes with every step."""
    return sorted(path.name for path in (run_dir / "episodes").glob("*"))[-1:]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_kills_change_nothing(tmp_path):
    make_tiny(tmp_path)
    whole, killed = (tmp_path / name / "run" for name in ("whole", "killed"))
    assert start(tmp_path, whole).wait() == 0

    # Ten kills need fewer than thirty steps on any machine: each comes within a step's time of the first sign of life,
    # and before a second step's statistics.
    pause = median(map(step_seconds, read_stats(whole)))
    draw, at = random.Random(0), []
    for _ in range(KILLS):
        moments = [["/killed/run/episodes/", 1, draw.uniform(0.001, pause)], [r"/killed/run/\.?training_stats", 3, 0]]
        process = start(tmp_path, killed, ["-m", "tests.dying", json.dumps(moments)])
        assert process.wait() in (-signal.SIGALRM, -signal.SIGKILL), (tmp_path / "killed.log").read_text()[-2000:]
        at += newest(killed)
    print(f"killed at {at}")
    assert start(tmp_path, killed).wait() == 0

    first, second = read_stats(whole), read_stats(killed)
    assert len(first) == STEPS
    assert same_run(first, second)
    kept = versions(whole)
    assert kept == versions(killed) == [*range(0, 20, 2), *range(20, STEPS + 1)]  # evaluated ones and the last ones
    for version in kept:
        ours, theirs = (adapter_path(folder, version) / "adapter_model.safetensors" for folder in (whole, killed))
        assert ours.read_bytes() == theirs.read_bytes(), version
    assert (whole / "evaluations.json").read_text() == (killed / "evaluations.json").read_text()
    assert len(list((killed / "state").iterdir())) == 1  # older states are removed
    leftovers = [path for path in killed.rglob(".*") if path.is_dir()]
    assert leftovers == [], "half-written folders are cleared away"
