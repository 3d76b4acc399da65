"""Browser benchmark: size of browser.html with 10,000 made-up episodes, and time to load, filter and scroll.

    python -m bench.browser --episodes 10000

Headless Chromium (Debian's package) draws it without a GPU. Times are of the page's own clock: of a filter from the
input to the drawn rows, of a scroll to the second frame after it, so at least 17 ms and usually 33 at 60 Hz.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.chromium import Chromium, Page, chromium_path
from forage.agent.episode import Episode, Search, Turn, append_episodes
from forage.cli import run_script
from forage.errors import UserError
from forage.runs.browser import write_browser
from forage.runs.stats import StepStats, write_stats

WORDS = "gout toe joint pain night uric acid crystals asthma airways rest ice anemia iron fever migraine light".split()
PER_STEP = 64

TYPED = """(() => { const field = document.getElementById("search"), start = performance.now();
field.value = %s; field.dispatchEvent(new Event("input")); document.getElementById("list").getBoundingClientRect();
return performance.now() - start; })()"""
SCROLLED = """new Promise((done) => { const list = document.getElementById("list"), start = performance.now();
list.scrollTop = %d; requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start))); })"""


@dataclass(frozen=True)
class Options:
    """Measure the page of a run with many episodes."""

    episodes: int = 10_000
    """Episodes, 64 a step."""
    words: int = 450
    """Words of each transcript: 2.5 kB."""
    seed: int = 0
    """Seed of the words."""

    def __post_init__(self) -> None:
        if self.episodes < 1 or self.words < 1:
            raise UserError(f"--episodes and --words must be at least 1, got {self.episodes} and {self.words}")


def make_run(run_dir: Path, options: Options) -> None:
    """A run folder of made-up episodes, whose words are drawn evenly, without a prompt that repeats."""
    draw = random.Random(options.seed)
    for step in range(-(-options.episodes // PER_STEP)):
        numbers = range(step * PER_STEP, min((step + 1) * PER_STEP, options.episodes))
        episodes = [_episode(number, draw, options.words) for number in numbers]
        folder = run_dir / "episodes" / f"{step:06d}"
        folder.mkdir(parents=True)
        append_episodes(folder / "trainer.jsonl", episodes)
        write_stats(run_dir, _stats(step, [episode.reward for episode in episodes]))


def _episode(number: int, draw: random.Random, words: int) -> Episode:
    text, reward = " ".join(draw.choices(WORDS, k=words)), draw.random()
    return Episode(
        id=f"q{number // 8}/{number % 8}", question_id=f"q{number // 8 % 400}", ids=(1, 2, 3), mask=(0, 1, 1),
        logprobs=(0.0, -0.1, -0.2), turns=(Turn(1, 3),), searches=(Search(0, text[:40], ("d1#0", "d2#0")),),
        answer=text[:80], stop=draw.choice(["answer", "turns", "tokens"]), adapter="v000000", transcript=text,
        rewards={"mrr": reward}, reward=reward,
    )  # fmt: skip


def _stats(step: int, rewards: list[float]) -> StepStats:
    count = len(rewards)
    return StepStats(
        step=step, adapter=f"v{step:06d}", rewards={"overall": rewards}, stops={"answer": count}, faults={},
        groups={"total": count // 8, "flat": 0, "replaced": 0}, training={"entropy": 1.0, "kl": 0.01},
        episodes={"count": count, "well_formed": 1.0, "searches": 1.0, "turns": 1.0, "sampled_tokens": 2.0,
                  "tokens": 3.0, "stale": 0},
    )  # fmt: skip


def measure(page: Page, count: int) -> dict[str, list[float]]:
    """Milliseconds by what was done."""
    places = [index * 28 for index in random.Random(1).choices(range(count), k=40)]
    return {
        "filter by a frequent word": [page.evaluate(TYPED % '"gout"') for _ in range(5)],
        "filter by a text that is nowhere": [page.evaluate(TYPED % '"zzz"') for _ in range(5)],
        "filter by nothing": [page.evaluate(TYPED % '""') for _ in range(5)],
        "scroll to anywhere": [page.evaluate(SCROLLED % place) for place in places],
    }


def main(options: Options) -> None:
    path = chromium_path()
    if path is None:
        raise UserError("no chromium here; install it: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, Chromium.start(path) as chromium:
        make_run(Path(folder), options)
        started = time.perf_counter()
        held = write_browser(Path(folder), max_episodes=options.episodes)
        written = time.perf_counter() - started
        size = (Path(folder) / "browser.html").stat().st_size
        texts = sum(len(episode["text"]) for episode in held["episodes"])
        print(
            f"{len(held['episodes'])} episodes, {texts / 1e6:.1f} MB of transcripts: "
            f"{size / 1e6:.1f} MB, {written:.1f} s to write"
        )
        page = chromium.open(Path(folder) / "browser.html")
        print(f"{'load until the list is drawn':34} {page.evaluate('window.drawnAt'):7.0f} ms")
        for name, times in measure(page, options.episodes).items():
            print(f"{name:34} {statistics.median(times):7.1f} ms (median), {max(times):.1f} (longest of {len(times)})")


if __name__ == "__main__":
    run_script(main, description=__doc__)
