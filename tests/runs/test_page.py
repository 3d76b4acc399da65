"""The page: what it holds, worked out by hand; and what a real Chromium makes of keys and hostile texts."""

import base64
import gzip
import hashlib
import html
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from forage.agent.episode import Search, append_episodes
from forage.data.records import Question
from forage.runs.report import (
    contents,
    curves,
    leads,
    row,
    texts_of,
    tokens,
    write_page,
)  # fmt: skip
from forage.runs.stats import write_stats
from forage.text import encodable, printable
from tests.attacks.hostile import hostile_documents
from tests.factories import EPISODE, STATS
from tests.refusals import refused
from tests.tiny import make_tokenizer

EVIL = "</script><script>alert(1)</script>\"'\u2028<!--"


def a_run(folder, *steps, episodes=None, rewards=(0.5, 0.75)):
    """A run of these steps, each with one episode if none are given."""
    for step in steps:
        played = episodes or [replace(EPISODE, id=f"{EVIL}{step}", transcript=EVIL)]
        figures = STATS.episodes | {"count": len(played)}
        write_stats(folder, replace(STATS, step=step, rewards={"overall": list(rewards)}, episodes=figures))
        (folder / "episodes" / f"{step:06d}").mkdir(parents=True)
        append_episodes(folder / "episodes" / f"{step:06d}" / "w.jsonl", played)
    return folder


# What the page holds


def test_hostile_text_is_in_the_data_and_never_in_the_page(tmp_path):
    write_page(a_run(tmp_path, 0))
    page = (tmp_path / "run.html").read_text()
    assert "alert(1)" not in page
    assert page.count("<script") == page.count("</script>") == 2
    data = re.search(r'id="data">"([A-Za-z0-9+/=]+)"</script>', page).group(1)
    [episode] = json.loads(gzip.decompress(base64.b64decode(data)))["episodes"]
    shown = EVIL.replace("\u2028", "\\u2028")  # printable, as on a terminal
    assert (episode["id"], episode["text"]) == (f"{shown}0", shown)


def test_a_lead_is_the_reward_less_the_mean_of_its_question():
    rewards = {"a": (0.0, 1.0), "b": (0.5,)}
    episodes = [replace(EPISODE, question_id=name, reward=value) for name in rewards for value in rewards[name]]
    assert leads(episodes) == [-0.5, 0.5, 0.0]


def test_a_hit_is_relevant_if_the_question_says_so():
    question = Question("q", "Why?", "Because.", "cause", relevant_chunk_ids=("d1#0",))
    episode = replace(EPISODE, searches=(Search(0, "why", ("d2#0", "d1#0")),))
    assert row(3, episode, 0.0, question)["searches"] == [[0, "why", [["d2#0", False], ["d1#0", True]]]]
    assert row(3, episode, 0.0, None)["reference"] is None


def test_curves_have_the_means_of_rewards_and_the_figures_of_the_update():
    stats = [replace(STATS, step=n, rewards={"overall": [0.0, n]}, training={"kl": 0.5}) for n in (1, 2)]
    drawn = curves(stats, {0: {"mrr": {"mean": 0.25, "low": 0.0, "high": 1.0}}})
    assert drawn["reward overall"] == [(1, 0.5), (2, 1.0)]
    assert drawn["kl"] == [(1, 0.5), (2, 0.5)]
    assert drawn["episodes: searches"] == [(1, 1.5), (2, 1.5)]
    assert drawn["held-out mrr"] == [(0, 0.25)]


def words(ids):
    """A token's text is its number; 5 ends a turn."""
    return "".join(f"{number} " if number != 5 else "end " for number in ids)


def test_tokens_come_with_their_texts_parts_and_figures():
    episode = replace(EPISODE, transcript=words(EPISODE.ids), credits=(0.0,) * 8 + (0.25, 0.0))
    texts = {}
    found = tokens(episode, words, texts)
    assert "".join(list(texts)[number] for number in found["texts"]) == "1 2 3 4 end 6 7 8 9 end "
    assert found["parts"] == [3, 2, 3, 2]
    assert found["logprobs"] == [-0.2, -0.1, -0.7, 0.0]
    assert found["credits"] == [0.0, 0.0, 0.25, 0.0]
    assert tokens(replace(episode, transcript="other"), words, texts) is None
    assert tokens(episode, None, texts) is None
    assert tokens(replace(EPISODE, mask=(1,) * 10, transcript=episode.transcript), words, texts)["parts"] == [0, 10]


def test_a_character_of_several_tokens_is_whole():
    tokenizer = make_tokenizer()
    text = "gout – 5 µg 🦶 e\u0301"
    found = texts_of(tokenizer.encode(text), lambda ids: tokenizer.decode(list(ids)))
    assert "".join(found) == text
    assert "🦶" in found


def test_two_runs_share_the_page_and_what_is_refused(tmp_path):
    first, second, empty = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for folder in (first, second, empty):
        folder.mkdir()
    held = contents([a_run(first, 0), a_run(second, 0, 1)], 2, 0)
    assert [run["name"] for run in held["runs"]] == ["a", "b"]
    assert [(episode["run"], episode["step"]) for episode in held["episodes"]] == [(0, 0), (1, 1)]
    assert held["left_out"] == 1
    with refused("is it the folder of a training run"):
        contents([first, empty], 10, 0)


# In Chromium


def in_chromium(path, script):
    """What a function gives on a page that has drawn its list, and the addresses that were asked for.

    The page's policy lets this script run beside its own, and any other no more than before. No address leads anywhere.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("left out: no chromium here (apt-get install chromium)")
    asked = "performance.getEntriesByType('resource').map((each) => each.name)"
    code = f"""const waiting = setInterval(() => {{
      if (!document.getElementById("count")?.textContent) return;
      clearInterval(waiting);
      document.documentElement.dataset.found = JSON.stringify([({script})(), {asked}]);
    }}, 10);"""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    page = path.read_text()
    assert page.count("script-src ") == 1
    path.write_text(page.replace("script-src ", f"script-src 'sha256-{digest}' ") + f"<script>{code}</script>")
    flags = "--headless --no-sandbox --disable-gpu --window-size=500,844 --virtual-time-budget=60000 --dump-dom"
    command = [
        chromium,
        *flags.split(),
        "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        path.resolve().as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert "CONSOLE" not in done.stderr, done.stderr  # it said nothing, and raised nothing
    return json.loads(html.unescape(re.search('data-found="([^"]*)"', done.stdout)[1]))


def hostile_texts():
    """Some 200, with what JSON and pages stumble over besides."""
    more = ["<script>document.title = 'owned'</script>", "\u2028\u2029", "\u200f\u202eright to left", "\ud83d half",
            "w" * 5000, "\x1b[2J\x1b[31mred", "</script>", "]]>", "<img src=x onerror=\"document.title='owned'\">",
            "{{7*7}}", "'\"`", "&lt;b&gt;", "__proto__", "<style>*{display:none}</style>"]  # fmt: skip
    short = [document.text for document in hostile_documents() if len(document.text) < 10_000]
    return short + more


@pytest.mark.slow
def test_hostile_texts_are_shown_as_they_are_and_run_nothing(tmp_path):
    texts = hostile_texts()
    assert len(texts) > 200
    played = [
        replace(EPISODE, id=f"q/{n}", question_id=text, transcript=text, answer=text,
                searches=(Search(0, text, (text,)),), rewards={text: 0.5}, reward=0.5)
        for n, text in enumerate(texts)
    ]  # fmt: skip
    run_dir = a_run(tmp_path, 0, episodes=played)
    write_page(run_dir)
    title = re.search("<title>(.*)</title>", (run_dir / "run.html").read_text())[1]
    open_all = """() => { const found = [];
      for (let n = 0; n < %d; n += 1) {
        document.dispatchEvent(new KeyboardEvent("keydown", { key: n ? "j" : "Enter" }));
        const shown = document.getElementById("shown");
        found.push([shown.querySelector(".text").textContent, shown.querySelector(".answers div").lastChild.textContent,
          shown.querySelector(".hit").textContent, document.querySelector(".row.chosen").lastChild.textContent]);
      }
      const kinds = [...document.querySelectorAll("body *")].map((each) => each.localName);
      const wide = document.documentElement.scrollWidth > innerWidth;
      return [found, kinds, document.scripts.length, wide, document.title]; }"""
    (found, kinds, scripts, wide, named), asked = in_chromium(run_dir / "run.html", open_all % len(texts))
    for text, shown_in in zip(texts, found, strict=True):
        shown = printable(encodable(text))
        assert shown_in == [shown, shown or "none", f"1. {shown}", shown]
    assert set(kinds) <= set(
        "header h1 h2 button details summary div figure figcaption b span svg polyline circle rect input select option "
        "section dl dt dd kbd script table caption tr th td".split()
    )
    assert (scripts, wide, named, asked) == (3, False, title, [])
