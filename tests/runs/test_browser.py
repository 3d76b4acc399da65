"""Browser: what the page holds, worked out by hand; and what a model wrote is nowhere in the file as markup."""

import base64
import gzip
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from forage.agent.episode import Search, append_episodes
from forage.data.records import Question
from forage.errors import UserError
from forage.runs.browser import Options, contents, curves, row, write_browser
from forage.runs.stats import write_stats
from tests.factories import EPISODE, STATS

EVIL = "</script><script>alert(1)</script>\"'\u2028<!--"


def a_run(folder, *steps):
    for step in steps:
        write_stats(folder, replace(STATS, step=step))
        (folder / "episodes" / f"{step:06d}").mkdir(parents=True)
        append_episodes(
            folder / "episodes" / f"{step:06d}" / "w.jsonl", [replace(EPISODE, id=f"{EVIL}{step}", transcript=EVIL)]
        )
    return folder


def test_hostile_text_is_in_the_data_and_never_in_the_page(tmp_path):
    write_browser(a_run(tmp_path, 0))
    page = (tmp_path / "browser.html").read_text()
    assert "alert(1)" not in page
    assert page.count("<script") == page.count("</script>") == 2
    data = re.search(r'id="data">"([A-Za-z0-9+/=]+)"</script>', page).group(1)
    [episode] = json.loads(gzip.decompress(base64.b64decode(data)))["episodes"]
    assert (episode["id"], episode["text"]) == (f"{EVIL}0", EVIL)


def test_too_many_episodes_leave_the_earliest_out_and_count_them(tmp_path):
    held = contents(a_run(tmp_path, 0, 1, 2), None, 2)
    assert [episode["step"] for episode in held["episodes"]] == [2, 1]
    assert held["left_out"] == 1


def test_a_hit_is_relevant_if_the_question_says_so():
    question = Question("q", "Why?", "Because.", "cause", relevant_chunk_ids=("d1#0",))
    episode = replace(EPISODE, searches=(Search(0, "why", ("d2#0", "d1#0")),))
    assert row(3, episode, question)["searches"] == [[0, "why", [["d2#0", False], ["d1#0", True]]]]
    assert row(3, episode, None)["reference"] is None


def test_curves_have_the_means_of_rewards_and_the_figures_of_the_update():
    stats = [replace(STATS, step=n, rewards={"overall": [0.0, n]}, training={"kl": 0.5}) for n in (1, 2)]
    assert curves(stats) == {"reward overall": [(1, 0.5), (2, 1.0)], "kl": [(1, 0.5), (2, 0.5)]}


def test_two_runs_and_what_is_refused(tmp_path):
    first, second, empty = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for folder in (first, second, empty):
        folder.mkdir()
    held = contents(a_run(first, 0), a_run(second, 0, 1), 10)
    assert [run["name"] for run in held["runs"]] == ["a", "b"]
    assert len(held["episodes"]) == 1
    with pytest.raises(UserError, match="is it the folder of a training run"):
        contents(first, empty, 10)
    with pytest.raises(UserError, match="max-episodes"):
        Options(first, max_episodes=-1)


@pytest.mark.slow
def test_chromium_lists_the_episodes_and_runs_nothing_of_them(tmp_path):
    """The page unpacks under its Content-Security-Policy, and draws a hostile text as a text."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("left out: no chromium here (apt-get install chromium)")
    write_browser(a_run(tmp_path, 0, 1))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--enable-logging=stderr"]
    page = (tmp_path / "browser.html").as_uri()
    done = subprocess.run([chromium, *flags, "--dump-dom", page], capture_output=True, text=True, timeout=120)
    assert "2 of 2 episodes" in done.stdout
    assert done.stdout.count('class="row') == 2
    assert done.stdout.count("<script") == 2
    assert "CONSOLE" not in done.stderr
