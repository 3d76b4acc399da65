"""Every training process plays its share: with one of two killed, or failing, and against one process by itself."""

import gzip
import signal

import pytest

from forage.agent.episode import read_episodes
from forage.runs.stats import read_stats, same_run
from tests.kills import start, start_ranks
from tests.tiny import make_tiny
from tests.tiny_training import tiny_args

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SPARE = ("--max-steps", "2", "--replace-flat", "2", "--batch-size", "4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("shared"))


def command(folder, arena, *more):
    arena.mkdir(exist_ok=True)
    return ("-m", "tests.tiny_training", "train", *tiny_args(folder, arena / "run", *SPARE, *more))


def ended(ranks, *statuses):
    assert [rank.wait(400) for rank in ranks] == list(statuses), [rank.said[-3000:] for rank in ranks]


def shares(run_dir, step="000000"):
    """By worker, what it wrote."""
    files = sorted((run_dir / "episodes" / step).glob("*.jsonl*"))
    return {path.name.partition(".")[0]: gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
            for path in files}  # fmt: skip


def played(run_dir, step="000000"):
    """By id, the tokens of each episode."""
    files = sorted((run_dir / "episodes" / step).glob("*.jsonl*"))
    return {episode.id: (episode.ids, episode.rewards) for path in files for episode in read_episodes(path)}


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """An undisturbed run of two processes, and the number of changes that each made to its files."""
    arena = tmp_path_factory.mktemp("whole")
    ranks = start_ranks(command(folder, arena), arena)
    ended(ranks, 0, 0)
    return arena / "run", [rank.changes for rank in ranks]


def test_two_processes_come_to_the_figures_of_one(folder, whole, tmp_path):
    run_dir, _ = whole
    ended([start(command(folder, tmp_path), tmp_path)], 0)
    for step in ("000000", "000000-eval"):  # later ones are by adapters that were rounded differently
        assert played(run_dir, step) == played(tmp_path / "run", step)
        assert {name[:12] for name in shares(run_dir, step)} == {"trainer-1of2", "trainer-2of2"}
    two, one = read_stats(run_dir)[0], read_stats(tmp_path / "run")[0]
    assert (two.rewards, two.groups, two.episodes, two.stops, two.faults, two.evaluation) == (
        one.rewards, one.groups, one.episodes, one.stops, one.faults, one.evaluation
    )  # fmt: skip
    assert two.training == pytest.approx(one.training, rel=1e-3, abs=1e-5)


def test_only_the_share_of_the_killed_process_is_played_again(folder, whole, tmp_path):
    run_dir, (_, changes) = whole
    died = start_ranks(command(folder, tmp_path), tmp_path, second={changes // 2: signal.SIGKILL})
    assert died[1].wait(400) == -signal.SIGKILL
    assert died[0].wait(400) == 1
    assert died[0].said.splitlines()[-1].startswith("error: another training process has ended")
    assert "Traceback" not in died[0].said
    plans = {path.stem for path in (tmp_path / "run" / "plans").glob("*.json")}
    [step] = plans & {path.name for path in (tmp_path / "run" / "episodes").iterdir()}
    before = shares(tmp_path / "run", step)
    print(f"killed at {died[1].last}; there were {sorted(before)}")
    assert "trainer-1of2" in before
    ended(start_ranks(command(folder, tmp_path), tmp_path), 0, 0)
    after = shares(tmp_path / "run", step)
    assert after["trainer-1of2"] == before["trainer-1of2"]  # down to the measured seconds
    assert after != before
    assert same_run(read_stats(run_dir), read_stats(tmp_path / "run"))


def test_one_process_that_fails_ends_both_with_a_line(folder, tmp_path):
    failing, environment = 1, {"FAILING_RANK": "1"}
    ranks = start_ranks(command(folder, tmp_path), tmp_path, environment=environment)
    ended(ranks, 1, 1)
    last = [rank.said.splitlines()[-1] for rank in ranks]
    assert last[failing] == "error: reward 'fail': no rewards in this process"
    assert last[1 - failing].startswith("error: another training process has ended")
    assert all("Traceback" not in rank.said for rank in ranks)


def test_a_run_of_two_processes_goes_on_with_one_and_back(folder, whole, tmp_path):
    """What a killed process of two left would not be played again by one for the length of a lease, if it counted."""
    _, (_, changes) = whole
    died = start_ranks(command(folder, tmp_path), tmp_path, second={changes // 4: signal.SIGKILL})
    ended(died, 1, -signal.SIGKILL)
    ended([start(command(folder, tmp_path), tmp_path)], 0)
    assert [stats.step for stats in read_stats(tmp_path / "run")] == [0, 1]
    first = shares(tmp_path / "run")
    assert set(first) == {"trainer"} or all(name.endswith("of2") for name in first)
    ended(start_ranks(command(folder, tmp_path, "--max-steps", "3"), tmp_path), 0, 0)
    assert set(shares(tmp_path / "run", "000002")) >= {"trainer-1of2", "trainer-2of2"}
