"""The progress line by hand; both live displays in one real terminal."""

import io
import os
import pty
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
from rich.console import Console

from forage.runs.phases import Phases
from forage.runs.progress import TrainView, duration, lessons, reward_trends, seconds_left
from tests import ROOT
from tests.factories import STATS, Clock


def steps_of(means, seconds=10.0):
    return [
        replace(STATS, step=step, rewards={"overall": [mean]}, seconds={"rollout": seconds, "generate": 9.0}, notes=[])
        for step, mean in enumerate(means)
    ]


def test_time_left_by_hand():
    assert seconds_left([], 9) is None
    steps = [replace(STATS, step=step, seconds={"step": took}) for step, took in enumerate((10.0, 12.0, 50.0))]
    assert seconds_left(steps, 9) == 84
    assert seconds_left(steps, 2) == 0
    assert [duration(s) for s in (0.2, 59.4, 61, 7300, 200_000)] == ["0 s", "59 s", "1 min 1 s", "2 h 1 min", "2 d 7 h"]


def test_what_taught_nothing_is_said():
    learnt = replace(STATS, groups={"total": 2, "flat": 1, "replaced": 0})
    assert lessons(learnt) == []
    flat = replace(STATS, groups={"total": 2, "flat": 2, "replaced": 0})
    assert lessons(flat) == ["2 of 2 groups flat (all episodes of a question earned the same): no reward to learn from"]
    [said] = lessons(replace(flat, episodes=STATS.episodes | {"well_formed": 0.0}))
    assert said.startswith("no episode keeps to the protocol")
    assert "sft_train.py" in said


def test_trends_by_hand():
    assert reward_trends([]) == []
    assert reward_trends(steps_of([0.2])) == [("overall", 0.2, None)]
    assert reward_trends(steps_of([0.2, 0.4, 0.6, 0.8])) == [("overall", 0.8, pytest.approx(0.4))]
    assert reward_trends(steps_of([9.0, *[0.2] * 5, *[0.5] * 5])) == [("overall", 0.5, pytest.approx(0.3))]
    later = [*steps_of([0.2]), replace(STATS, step=1)]
    assert reward_trends(later)[1] == ("mrr", 0.5, None)  # which the first step did not have


def test_a_log_has_a_line_a_step(capsys):
    with TrainView(9, Phases(), history=steps_of([0.2, 0.4])) as view:
        view.began(2)
        view.sampled = ", sampled at T 0.7"
        view.ended(replace(steps_of([0.2, 0.4, 0.6])[2], notes=["half of the groups were [flat]"]))
    assert capsys.readouterr().out.splitlines() == [
        "step 2 of 9, sampled at T 0.7: overall 0.600; 10 s (rollout 10); 1 min 10 s left",
        "note: half of the groups were [flat]",
    ]


def test_the_table_says_what_runs_now():
    clock = Clock()
    phases = Phases(clock)
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    view = TrainView(9, phases, console=console)
    assert view.figures() == {}
    view.began(0)
    with phases("backward"):
        clock.seconds = 75
        assert view.figures() == {"step": "0 of 9", "now": "backward, 1 min 15 s"}
    view.ended(steps_of([0.25])[0])
    assert view.figures() == {
        "step": "0 of 9",
        "left": "1 min 30 s, at a median of 10 s per step",
        "overall": "0.250",
    }
    view.ended(replace(steps_of([0.75])[0], step=1))
    assert view.figures()["overall"] == "0.750, trend +0.500"
    view.history.pop()
    with view:
        view.began(1)
        assert view.figures()["left"].startswith("1 min 30 s")
    assert "overall" in console.file.getvalue()


BOTH = """
from dataclasses import replace
from forage.rollout.view import RolloutView
from forage.runs.phases import Phases
from forage.runs.progress import TrainView
from tests.factories import EPISODE
from tests.factories import STATS, Clock

phases = Phases()
with TrainView(1, phases) as view:
    for step in range(2):
        view.began(step)
        with phases("rollout"), view.paused(), RolloutView(f"episodes of {step}", 1) as rollout:
            rollout.played(EPISODE)
        with phases("backward"):
            print("a library's line")
        view.ended(replace(STATS, step=step, seconds=phases.take(), notes=["careful"]))
print("done")
"""


def test_both_displays_take_turns_in_a_terminal():
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BOTH)], cwd=ROOT, stdout=theirs, stderr=theirs,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        said += part
    assert process.wait() == 0, said.decode()
    text = said.decode()
    for line in ("episodes of 0", "step 0 of 1: overall 0.625", "episodes of 1", "step 1 of 1: overall 0.625", "done"):
        assert line in text
    assert text.count("note: careful") == 2
    hidden, shown = text.count("\x1b[?25l"), text.count("\x1b[?25h")
    assert hidden == shown == 5  # each display puts the cursor back before the next one begins
