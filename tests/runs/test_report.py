"""Report: when it is drawn, by hand; it holds text, never markup; and it can be drawn again from the run folder."""

import json
import sys
from dataclasses import replace
from html.parser import HTMLParser

from forage.agent.episode import Turn, append_episodes, read_episodes
from forage.data.records import Question
from forage.runs.plots import FIGURES, draw_plots
from forage.runs.report import Library, PlotSchedule, Shown, chosen_of, draw_report, shown, worst_of_run, write_report
from forage.runs.stats import write_evaluations, write_stats
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
    write_report(tmp_path, stats, [Shown(evil, [(evil, evil)], evil + "\ud800")])
    read = Read((tmp_path / "report.html").read_text())
    tags = [tag for tag, _ in read.tags]
    assert "script" not in tags
    assert tags.count("img") == len(FIGURES)
    assert all(attrs["src"].startswith("data:image/png;base64,") for tag, attrs in read.tags if tag == "img")
    assert not any(name.startswith("on") for _, attrs in read.tags for name in attrs)
    assert (
        read.text.count("<script>alert(1)</script>") == 7
    )  # note, reward, stop, the episode's title, fact and its name, and transcript
    assert "default-src 'none'" in read.tags[3][1]["content"]


def test_best_middle_and_worst_episode_are_shown():
    episodes = [
        replace(EPISODE, id=f"q/{n}", reward=reward, transcript=f"text {n}") for n, reward in enumerate((0.5, 1, 0))
    ]
    chosen = chosen_of(episodes)
    assert [(place, episode.id) for place, episode in chosen] == [("best", "q/1"), ("middle", "q/0"), ("worst", "q/2")]
    assert len(chosen_of(episodes[:1])) == 1
    assert chosen_of([]) == []


def played(run_dir, rewards):
    """Steps with episodes of these rewards, in files as a run leaves them."""
    steps = []
    for step, row in enumerate(rewards):
        episodes = [replace(EPISODE, id=f"s{step}/{n}", reward=reward) for n, reward in enumerate(row)]
        append_episodes(run_dir / "episodes" / f"{step:06d}" / "w.jsonl", episodes)
        steps.append(replace(STATS, step=step, rewards={"overall": row}))
    return steps


def test_the_worst_of_the_run_by_hand(tmp_path):
    steps = played(tmp_path, [[0.5, 0.1, 0.9], [0.0, 0.3, 0.8], [0.7, 0.0, 0.2], [0.4, 0.6, 0.0]])
    last = [episode for _, episode in chosen_of(list(read_episodes(tmp_path / "episodes/000003/w.jsonl")))]
    found = worst_of_run(tmp_path, steps, but=last)
    assert [(place, episode.id) for place, episode in found] == [
        (f"among the worst of the run, step {step}", name)
        for step, name in ((2, "s2/1"), (1, "s1/0"), (0, "s0/1"), (2, "s2/2"), (1, "s1/1"))
    ]


def test_an_episode_says_what_was_wanted_and_what_went_wrong():
    turns = (Turn(3, 5, ("bad_json", "bad_json")), Turn(8, 10, ("odd",)))
    episode = replace(EPISODE, turns=turns, stop="turns", answer="")
    question = Question("q", "What is gout?", "Crystals.", relevant_chunk_ids=("b", "z"))
    library = Library({"q": question}, {"b": "Gout: Crystals in a joint."})
    assert shown("worst", episode, library) == Shown(
        "worst: q/0, reward 0.500 (mrr 0.500), ended by turns",
        [
            ("Question", "What is gout?"),
            ("Reference answer", "Crystals."),
            ("Wanted passage", "b (number 2 of what it saw): Gout: Crystals in a joint."),
            ("Wanted passage", "z (not found): gone"),
            ("Answer", "none"),
            ("Ended because", "the last turn allowed (--max-turns) did not answer"),
            ("Fault", "The call is not valid JSON (bad_json)"),
            ("Fault", "odd (odd)"),
        ],
        "",
    )


def test_the_page_of_a_run_holds_its_data_and_its_last_evaluation(tmp_path, tiny_data):
    steps = played(tmp_path, [[0.5]])
    append_episodes(tmp_path / "episodes" / "000000" / "x.jsonl", [replace(EPISODE, id="y", question_id="q2")])
    (tmp_path / "config.json").write_text(json.dumps({"rollout": {"data": str(tiny_data)}}))
    figures = {"mean": 0.25, "low": 0.125, "high": 0.5}
    write_evaluations(tmp_path, {0: {"mrr": figures}, 1: {"mrr": figures | {"mean": 0.375}}})
    draw_report(tmp_path, steps)
    text = Read((tmp_path / "report.html").read_text()).text
    assert "Evaluation of v000000, 95 % intervalmeanlowhighmrr0.250.1250.5" in text
    assert "Evaluation of v000001, 95 % intervalmeanlowhighmrr0.3750.1250.5" in text
    assert "QuestionWhat mends disease 2?Reference answerRemedy 2." in text
    assert "Wanted passaged2#0 (not found): Disease 2: Disease 2 is mended by rest and by remedy 2." in text
    assert "Questionq; the data folder of the run is not here to tell more" in text
    assert "bad_json: The call is not valid JSON1" in text


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
