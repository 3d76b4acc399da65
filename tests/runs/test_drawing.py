"""Drawing: when a run is drawn, by hand; in a process of its own, whose faults don't become training's."""

import sys
from dataclasses import replace

from forage.grpo import reporting
from forage.grpo.reporting import Drawing
from forage.runs.stats import write_stats
from tests.factories import STATS, run_of

EVALUATED = {"mrr": {"mean": 0.5, "low": 0.4, "high": 0.6}}


def test_the_whole_run_is_drawn_at_its_end_from_wherever_it_was_started(tmp_path, monkeypatch, capsys):
    for step in run_of(2):
        write_stats(tmp_path / "run", step)
    monkeypatch.chdir(tmp_path)
    run = Drawing(tmp_path / "run")
    run.after(replace(STATS, evaluation=EVALUATED))
    run.finish()
    assert capsys.readouterr().out == f"{tmp_path / 'run' / 'run.html'} shows its curves and 0 of its episodes\n"
    names = {"rewards.png", "reward_distribution.png", "training.png", "run.html"}
    assert names < {path.name for path in (tmp_path / "run").iterdir()}


def test_a_page_that_fails_is_said_to_be_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reporting, "COMMAND", (sys.executable, "-c", "print('one'); raise SystemExit('error: full')"))
    Drawing(tmp_path).finish()
    assert capsys.readouterr().out == (
        f"{tmp_path}/run.html was not written (error: full); python -m forage.runs.report {tmp_path} tries again\n"
    )
