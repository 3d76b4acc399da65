"""The line of a step, and whether the trainer waits, by hand."""

from dataclasses import replace

from forage.runs.stats import advice, lessons, print_step, seconds_left
from tests.factories import STATS


def test_time_left_by_hand():
    steps = [replace(STATS, step=step, seconds={"step": took}) for step, took in enumerate((10.0, 12.0, 50.0))]
    assert seconds_left(steps, 9) == 84
    assert seconds_left(steps, 2) == 0


def test_what_taught_nothing_is_said():
    learnt = replace(STATS, groups={"total": 2, "flat": 1, "replaced": 0})
    assert lessons(learnt) == []
    flat = replace(STATS, groups={"total": 2, "flat": 2, "replaced": 0})
    assert lessons(flat) == ["2 of 2 groups flat (all episodes of a question earned the same): no reward to learn from"]
    [said] = lessons(replace(flat, episodes=STATS.episodes | {"well_formed": 0.0}))
    assert said.startswith("no episode keeps to the protocol")
    assert "sft_train.py" in said


def test_a_step_is_a_line(capsys):
    seconds = {"rollout": 10.0, "generate": 9.0}
    history = [
        replace(STATS, step=step, rewards={"overall": [mean]}, seconds=seconds, notes=["half of it was [flat]"])
        for step, mean in enumerate((0.2, 0.4, 0.6))
    ]
    print_step(history, 9, ", sampled at T 0.7")
    assert capsys.readouterr().out.splitlines() == [
        "step 2 of 9, sampled at T 0.7: overall 0.600; 10 s (rollout 10); 1 min 10 s left",
        "note: half of it was [flat]",
    ]


def test_a_trainer_that_waits_a_fifth_of_the_last_steps_is_told_but_not_of_the_first():
    def step(number, waited, played=8):
        seconds = {"rollout": 4.0, "backward": 6.0, "generate": 3.0, "rollout_wait": waited}
        return replace(STATS, step=number, seconds=seconds, workers={"a": played} if played else {})

    says = "the trainer waits 50 % of the time for episodes: add a rollout worker, or raise --max-staleness"
    assert advice([step(0, 99.0), step(1, 6), step(2, 4)]) == says
    assert advice([step(0, 99.0), step(1, 3), step(2, 0.9)]) == ""  # 19.5 %
    assert advice([step(0, 99.0)]) == advice([]) == advice([step(0, 6, 0), step(1, 6, 0)]) == ""
    assert advice([*(step(number, 8) for number in range(30)), *(step(number, 1) for number in range(30, 50))]) == ""
