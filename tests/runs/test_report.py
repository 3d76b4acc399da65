"""Report: when it is drawn, by hand; it holds text, never markup; and it can be drawn again from the run folder."""

import sys
from dataclasses import replace
from html.parser import HTMLParser

from forage.agent.episode import append_episodes
from forage.runs.plots import FIGURES, draw_plots
from forage.runs.report import PlotSchedule, shown_episodes, write_report
from forage.runs.stats import write_stats
from tests.factories import EPISODE, STATS, run_of
from tests.here import run_here


def test_a_run_is_drawn_every_20_seconds_and_with_every_evaluation_by_hand():
    now = [100.0]
    schedule = PlotSchedule(clock=lambda: now[0], every=20.0)
    plain = replace(STATS, evaluation=None)
    evaluated = replace(STATS, evaluation={"mrr": {"mean": 0.5, "low": 0.4, "high": 0.6}})
    drawn = []
    for seconds, stats in ((8, plain), (16, evaluated), (24, plain), (32, plain), (50, plain), (69.9, plain)):
        now[0] = 100.0 + seconds
        drawn += [seconds] if schedule.due(stats) else []
    assert drawn == [16, 50]
    now[0] = 170.0  # slow steps are drawn each
    assert schedule.due(plain)
    now[0] = 190.0
    assert schedule.due(plain)
    assert not schedule.due(plain)
    assert schedule.due(evaluated)


class Read(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_the_report_is_one_page_and_what_a_model_wrote_is_text(tmp_path):
    evil = "</pre><script>alert(1)</script><img src=http://example.org/x onerror=alert(1)> & {body}"
    stats = [replace(STATS, notes=[evil], stops={evil: 1}, rewards={"overall": [1.0], evil: [0.5]})]
    draw_plots(tmp_path, stats)
    write_report(tmp_path, stats, [(evil, evil + "\ud800")])
    read = Read((tmp_path / "report.html").read_text())
    tags = [tag for tag, _ in read.tags]
    assert "script" not in tags
    assert tags.count("img") == len(FIGURES)
    assert all(attrs["src"].startswith("data:image/png;base64,") for tag, attrs in read.tags if tag == "img")
    assert not any(name.startswith("on") for _, attrs in read.tags for name in attrs)
    assert read.text.count("<script>alert(1)</script>") == 5  # note, reward, stop, episode and its title
    assert "default-src 'none'" in read.tags[3][1]["content"]


def test_best_middle_and_worst_episode_are_shown():
    episodes = [
        replace(EPISODE, id=f"q/{n}", reward=reward, transcript=f"text {n}") for n, reward in enumerate((0.5, 1, 0))
    ]
    assert [(title[: title.index(",")], text) for title, text in shown_episodes(episodes)] == [
        ("best: q/1", "text 1"), ("middle: q/0", "text 0"), ("worst: q/2", "text 2"),
    ]  # fmt: skip
    assert len(shown_episodes(episodes[:1])) == 1
    assert shown_episodes([]) == []


def again(folder):
    return run_here([sys.executable, "-m", "forage.runs.report", folder])


def test_plots_are_drawn_again_from_the_run_folder(tmp_path):
    failed = again(tmp_path)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert (
        failed.stderr == f"error: {tmp_path} has no training_stats_<step>.json; is it the folder of a training run?\n"
    )
    for step in run_of(2):
        write_stats(tmp_path, step)
    append_episodes(tmp_path / "episodes" / "000001" / "w.jsonl", [replace(EPISODE, transcript="what it <said>")])
    done = again(tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'report.html'} shows 2 steps\n")
    assert "what it &lt;said&gt;" in (tmp_path / "report.html").read_text()
    assert all((tmp_path / name).exists() for name in FIGURES)
