"""Browser: writes browser.html, one file with a run's curves and its episodes to search, filter and compare.

    python -m forage.runs.browser runs/a
    python -m forage.runs.browser runs/a runs/b

With a second run its curves are drawn over those of the first. The page loads nothing from anywhere.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from forage.agent.episode import STOPS, Episode, read_episodes
from forage.agent.episode_files import episode_files
from forage.cli import run_script
from forage.data.records import Question
from forage.errors import UserError
from forage.files import replacing
from forage.runs.report import read_library
from forage.runs.stats import StepStats, read_stats
from forage.text import encodable

HERE = Path(__file__).parent
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{js_hash}'; style-src '{css_hash}'">
<title>{title}</title>
<style>{css}</style>
<body>
<script type="application/json" id="data">{data}</script>
<script>{js}</script>
</body>
</html>
"""


def write_browser(run_dir: Path, second: Path | None = None, max_episodes: int = 10_000) -> dict[str, Any]:
    """Write browser.html into the first run's folder, and return what it holds."""
    held = contents(run_dir, second, max_episodes)
    css, js = ((HERE / name).read_text() for name in ("browser.css", "browser.js"))
    title = html.escape(encodable(run_dir.resolve().name))
    page = PAGE.format(title=title, css=css, js=js, css_hash=_hash(css), js_hash=_hash(js), data=packed(held))
    with replacing(run_dir / "browser.html") as file:
        file.write(page)
    return held


def packed(held: Mapping[str, Any]) -> str:
    """JSON of base64 of gzip of JSON: its alphabet has no character that HTML could take for markup."""
    text = encodable(json.dumps(held, ensure_ascii=False, allow_nan=False))
    return json.dumps(base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode())


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def contents(run_dir: Path, second: Path | None, max_episodes: int) -> dict[str, Any]:
    """All that the page shows. Of too many episodes the latest are kept, and the others counted."""
    runs = [(path, _stats(path)) for path in (run_dir, second) if path is not None]
    kept: list[tuple[int, Episode]] = []
    total = 0
    for step in reversed([stats.step for stats in runs[0][1]]):
        found = [e for path in episode_files(run_dir / "episodes" / f"{step:06d}") for e in read_episodes(path)]
        total += len(found)
        kept += [(step, episode) for episode in found[: max_episodes - len(kept)]]
    questions = read_library(run_dir, {episode.question_id for _, episode in kept}).questions
    return {
        "runs": [{"name": path.resolve().name, "curves": curves(stats)} for path, stats in runs],
        "stops": STOPS,
        "left_out": total - len(kept),
        "episodes": [row(step, episode, questions.get(episode.question_id)) for step, episode in kept],
    }


def _stats(run_dir: Path) -> list[StepStats]:
    if stats := read_stats(run_dir):
        return stats
    raise UserError(f"{run_dir} has no training_stats_<step>.json; is it the folder of a training run?")


def curves(stats: Sequence[StepStats]) -> dict[str, list[tuple[int, float]]]:
    """Points (step, value) by figure. Example: {"reward overall": [(0, 0.2), (1, 0.3)], "kl": ...}."""
    found: dict[str, list[tuple[int, float]]] = {}
    for step in stats:
        figures = {f"reward {name}": summary["mean"] for name, summary in step.summary.items()} | step.training
        for name, value in figures.items():
            found.setdefault(name, []).append((step.step, value))
    return found


def row(step: int, episode: Episode, question: Question | None) -> dict[str, Any]:
    """An episode as the page has it. Each search's hits come with whether the data calls them relevant."""
    relevant = set(question.relevant_chunk_ids) if question else set()
    return {
        "step": step, "id": episode.id, "question_id": episode.question_id, "reward": episode.reward,
        "rewards": episode.rewards, "stop": episode.stop, "answer": episode.answer, "text": episode.transcript,
        "faults": episode.faults, "type": question.question_type if question else "",
        "question": question.question if question else None, "reference": question.answer if question else None,
        "searches": [[s.turn, s.query, [[hit, hit in relevant] for hit in s.hits]] for s in episode.searches],
    }  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Write a page to look through a run's curves and episodes."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Run folder."""
    second: Annotated[Path | None, tyro.conf.Positional] = None
    """Another run folder, whose curves are drawn over those of the first."""
    max_episodes: int = 10_000
    """Episodes on the page at most; the latest steps are kept."""

    def __post_init__(self) -> None:
        if self.max_episodes < 0:
            raise UserError(f"--max-episodes must be at least 0, got {self.max_episodes}")


def main(options: Options) -> None:
    held = write_browser(options.run_dir, options.second, options.max_episodes)
    print(f"{options.run_dir / 'browser.html'} shows {len(held['episodes'])} episodes, {held['left_out']} left out")


if __name__ == "__main__":
    run_script(main, description=__doc__)
