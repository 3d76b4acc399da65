"""Trainer and workers on two machines that share a folder on a real NFS alone: nothing lost, used twice or stale."""

import shutil

import pytest

from forage.agent.episode import episode_files, read_episodes
from forage.policy.adapters import sampled_by
from forage.runs.stats import read_stats
from tests import ROOT
from tests.guests import Guests, check_guests
from tests.sharded_runs import make_inputs

pytestmark = [pytest.mark.slow, pytest.mark.nfs, pytest.mark.timeout(3600)]
STEPS, EPISODES = 5, 12


@pytest.fixture
def out(tmp_path):
    check_guests()
    guests = Guests(tmp_path, ROOT / "tests" / "nfs_guest.sh")
    inputs, out = tmp_path / "inputs", tmp_path / "out"
    inputs.mkdir()
    make_inputs(inputs)
    shutil.copytree(inputs, out / "inputs")
    (out / "settings").write_text(f"CHECKOUT={ROOT}\nINPUTS={inputs}\nSTEPS={STEPS}\n")
    guests.start()
    try:
        guests.wait()
    finally:
        guests.close()
    for file in sorted(out.glob("*.log")):
        print(f"--- {file.name}\n{file.read_text()}")
    return out


def said(out, name):
    return (out / name).read_text()


def test_a_run_over_nfs_loses_nothing_and_uses_nothing_stale(out):
    for name in ("server", "client"):
        assert "vers=4.2" in said(out, f"{name}.mount")
    print(f"a file was seen after {said(out, 'late.ms').strip()} ms")
    assert {name: int(said(out, f"{name}.status")) for name in ("trainer", "a", "b-killed", "b")} == {
        "trainer": 0, "a": 0, "b-killed": 137, "b": 0,
    }  # fmt: skip
    stats = read_stats(out / "run")
    assert [row.step for row in stats] == list(range(STEPS))
    for row in stats:
        assert row.episodes["count"] == EPISODES  # none lost, none twice
        assert row.episodes["stale"] == 0
        episodes = [
            e for path in episode_files(out / "run" / "episodes" / f"{row.step:06d}") for e in read_episodes(path)
        ]
        assert len({episode.id for episode in episodes}) == EPISODES
        versions = {sampled_by(episode.adapter)[0] for episode in episodes}
        assert versions <= {row.step - 1, row.step}
