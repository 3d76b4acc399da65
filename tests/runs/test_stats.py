"""Statistics: summaries by hand, files that come back as they were, and what differs between equal runs kept apart."""

import json
import time
from dataclasses import replace

import pytest

from forage.agent.episode import write_episodes
from forage.runs.report import told_of
from forage.runs.stats import (
    Phases,
    advice,
    cost,
    print_step,
    read_stats,
    reproducible,
    seconds_left,
    stats_path,
    step_seconds,
    summarised,
    to_row,
    verdicts,
    write_evaluations,
    write_plain_rag,
    write_stats,
)
from tests.factories import EPISODE, STATS, Clock
from tests.refusals import refused


def test_summary_by_hand():
    assert summarised([0.0, 1.0, 0.25, 0.75]) == {
        "mean": 0.5, "std": pytest.approx((0.3125 / 2) ** 0.5), "min": 0.0, "p25": 0.1875, "median": 0.5,
        "p75": 0.8125, "max": 1.0,
    }  # fmt: skip
    assert summarised([0.3]) == {
        "mean": 0.3, "std": 0.0, "min": 0.3, "p25": 0.3, "median": 0.3, "p75": 0.3, "max": 0.3,
    }  # fmt: skip


def test_what_all_steps_took_together():
    """Two steps of 2 episodes with 40 sampled tokens each, 31 and 41 s, of which 41 s are the rollout's."""
    first = replace(STATS, training={"tokens": 50.0})
    seconds = {"rollout": 20.5, "backward": 10.0, "step": 41.0}
    second = replace(STATS, training={"tokens": 1070.0}, seconds=seconds, memory_gib=2.25)
    says = "4 episodes: 160 tokens sampled, 1,120 learnt from; 1 min 12 s (rollout 57%, backward 14%), at most 2.2 GiB"
    assert cost([first, second]) == says
    assert cost([first, replace(second, price_per_hour=36.0)]) == says + ", 0.41 at the prices given"


def test_a_file_is_a_line_a_field_and_comes_back(tmp_path):
    path = write_stats(tmp_path, STATS)
    assert path == tmp_path / "training_stats_7.json"
    assert list(tmp_path.iterdir()) == [path]
    assert read_stats(tmp_path) == [STATS]
    text = path.read_text()
    assert text.splitlines()[1:5] == [
        '"schema": 1,',
        '"step": 7,',
        '"adapter": "v000007",',
        '"rewards": {"overall": [0.5, 0.75], "mrr": [0.0, 1.0]},',
    ]
    row = json.loads(text)
    assert list(row) == (
        "schema step adapter rewards summary groups episodes stops faults training evaluation flat_by_reward notes "
        "measured".split()
    )
    assert row["summary"]["overall"]["mean"] == 0.625
    assert row["measured"] == {"seconds": {"rollout": 20.5, "step": 31.0}, "memory_gib": 1.5}


def test_a_steps_line_has_its_number_and_how_many_there_are(capsys):
    print_step([STATS], 9, ", sampled")
    line = capsys.readouterr().out
    assert line.startswith("step 7 (8 of 9), sampled: overall 0.625, mrr 0.500; 31 s (rollout 20"), line


def test_what_training_changed_by_hand(tmp_path):
    for version, reward in ((0, 0.25), (9, 0.5)):
        played = [
            replace(EPISODE, id=f"q{n}/0", question_id=f"q{n}", reward=reward, rewards={"found": 4 * reward - 1})
            for n in range(6)
        ]
        write_episodes(tmp_path / "episodes" / f"{version:06d}-eval" / "a.jsonl", played)
    mean = {"mean": 0.5, "low": 0.5, "high": 0.5}
    write_evaluations(tmp_path, {0: {"found": mean}, 9: {"found": mean}})
    write_plain_rag(tmp_path, {"found": {f"q{n}": float(n > 4) for n in range(6)}})
    table, overall, plain, *question = told_of(tmp_path)
    heads, row = table.split("\n")
    assert heads.split() == ["held", "out", "before", "after", "plain", "RAG"]
    assert row.split()[-4:] == ["0.167", "(0.000", "to", "0.500)"]
    assert overall.startswith("Shown: the trained policy is better than the one before training; ")
    assert "the trained policy minus plain RAG is +0.833 (+0.500 to +1.000) in found on 6 questions" in plain
    assert question == [
        "the question with the median rise: q3",
        "  before, 0.250: searched for gout | toe, answered 'Rest – and “ice”.'",
        "  after, 0.500: searched for gout | toe, answered 'Rest – and “ice”.'",
    ]


def test_who_played_comes_back_and_is_measured(tmp_path):
    played = replace(STATS, workers={"a": 2}, servers={"gpu1:8100": 2})
    write_stats(tmp_path, played)
    assert read_stats(tmp_path) == [played]
    assert reproducible(STATS) == reproducible(played)
    waited = {"rollout": 20.0, "backward": 9.0, "rollout_wait": 8.0}
    assert step_seconds(replace(STATS, seconds=waited)) == 29.0


def test_steps_come_in_their_order_and_the_last_write_of_a_step_counts(tmp_path):
    for step in (10, 2, 1, 2):
        write_stats(tmp_path, replace(STATS, step=step, evaluation=None, notes=[str(step)]))
    write_stats(tmp_path, replace(STATS, step=2, notes=["again"]))
    (tmp_path / "training_stats_old.json").write_text("not a step's")
    stats = read_stats(tmp_path)
    assert [item.step for item in stats] == [1, 2, 10]
    assert stats[1].notes == ["again"]
    assert read_stats(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"training": {"kl": float("nan")}}, "step 7: .*; training diverged"),
        ({"rewards": {"overall": [0.5], "mrr": [float("-inf")]}}, "step 7: .* mend a reward"),
    ],
)
def test_what_json_cannot_hold_is_refused(tmp_path, change, says):
    with refused(says):
        write_stats(tmp_path, replace(STATS, **change))
    assert not list(tmp_path.iterdir())


def test_only_what_is_measured_differs_between_equal_runs():
    slower = replace(STATS, seconds={"rollout": 99.0}, memory_gib=3.0)
    assert reproducible(STATS) == reproducible(slower)
    assert "measured" not in reproducible(STATS)
    assert reproducible(STATS) != reproducible(replace(STATS, training=STATS.training | {"kl": 0.0020001}))
    assert reproducible(STATS) != reproducible(replace(STATS, notes=[]))


def broken(change):
    row = to_row(STATS)
    row.update(change)
    return json.dumps(row)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "JSONDecodeError"),
        (broken({"step": 8}), "it says step 8"),
        (broken({"training": {"kl": float("nan")}}), "NaN is not valid JSON"),
    ],
)
def test_a_broken_file_is_named(tmp_path, text, says):
    write_stats(tmp_path, replace(STATS, step=6))
    stats_path(tmp_path, 7).write_text(text)
    with refused(says) as error:
        read_stats(tmp_path)
    assert str(stats_path(tmp_path, 7)) in str(error.value)


def test_a_verdict_does_not_depend_on_which_episode_ended_first():
    after = {f"q{number}": [0.9, 0.1, 0.6, 0.8, 0.5][number % 5] for number in range(40)}
    before = dict.fromkeys(after, 0.4)
    turned = {name: after[name] for name in reversed(after)}
    assert verdicts("a", "b", "mrr", after, before, None) == verdicts("a", "b", "mrr", turned, before, None)


# Stopwatches by name


def test_phases_by_hand(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    phases = Phases()
    with phases("rollout"):
        clock.seconds = 2
        with phases("search"):
            clock.seconds = 5
        clock.seconds = 10
    with phases("search"):
        clock.seconds = 11
    clock.seconds = 20
    assert phases.take() == {"rollout": 10, "search": 4}
    assert phases.take() == {}


def test_a_phase_has_the_work_that_it_left_to_the_gpu(monkeypatch):
    """A stand-in whose queued work takes its time only when it is waited for, as on a GPU."""
    clock, queued, waits = Clock(), [], []

    def synchronize():
        waits.append(clock.seconds)
        clock.seconds += sum(queued)
        queued.clear()

    monkeypatch.setattr(time, "perf_counter", clock)
    phases = Phases(synchronize)
    with phases("update"):
        queued.append(7)
        with phases("backward"):
            clock.seconds += 1
            queued.append(20)
    with phases("checkpoint"):
        clock.seconds += 2
    assert waits == [1, 28, 30]
    assert phases.take() == {"backward": 28, "update": 28, "checkpoint": 2}
    queued.append(5)
    with pytest.raises(KeyError), phases("update"):
        raise KeyError  # a GPU that failed can't be waited for
    assert len(waits) == 3


# The line of a step, and whether the trainer waits


def test_the_time_left_is_of_the_steps_to_come_without_evaluations():
    steps = [replace(STATS, step=step, seconds={"rollout": took}) for step, took in enumerate((10.0, 12.0, 50.0))]
    assert seconds_left(steps, 10) == 7 * 12
    first = replace(STATS, step=0, seconds={"rollout": 10.0, "evaluation": 300.0})
    assert seconds_left([first], 5) == 40
    assert seconds_left(steps, 3) == 0


def test_a_trainer_that_waits_a_fifth_of_the_last_steps_is_told_but_not_of_the_first():
    def step(number, waited):
        seconds = {"rollout": 4.0, "backward": 6.0, "generate": 3.0, "rollout_wait": waited}
        return replace(STATS, step=number, seconds=seconds, workers={"a": 8})

    says = "the trainer waits 50 % of the time for episodes: add a rollout worker, or raise --max-staleness"
    assert advice([step(0, 99.0), step(1, 6), step(2, 4)]) == says
    assert advice([step(0, 99.0), step(1, 3), step(2, 0.9)]) == ""  # 19.5 %
    assert advice([step(0, 99.0)]) == advice([]) == ""
