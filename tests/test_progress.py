"""Progress is whole lines, few of them, and none for what is soon done."""

from dataclasses import replace

from forage import progress
from forage.progress import Counting
from forage.rollout.rollout import RolloutView
from tests.factories import EPISODE


def test_a_log_gets_whole_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOG_EVERY", 0.0)
    with Counting("pages", 1003, 1000) as bar:
        for _ in range(3):
            bar.update()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(";")[0] for line in lines] == [f"pages: done 1,00{n} of 1,003" for n in (1, 2, 3)]
    assert lines[-1] == "pages: done 1,003 of 1,003; left 0 s"
    assert all(line.startswith("pages: done 1,00") for line in lines)


def test_the_last_line_of_a_rollout_comes_once_with_all_rewards(monkeypatch, capsys):
    """An episode is told as played before it is rewarded."""
    monkeypatch.setattr(progress, "LOG_EVERY", 0.0)
    first, last = (replace(EPISODE, reward=mrr, rewards={"mrr": mrr}) for mrr in (0.75, 0.25))
    with RolloutView("000000", 2) as view:
        view.played(first)
        view.rewarded([first])
        view.played(last)
        view.rewarded([last])
    lines = [line for line in capsys.readouterr().out.splitlines() if "episodes 2 of 2" in line]
    assert [line.rpartition("; ")[2] for line in lines] == ["mrr 0.500"]
