"""Report: draws a run's plots and report.html, one page with the plots, the last statistics and some episodes.

    python -m forage.runs.report runs/grpo

Everything comes from the files of the run folder, so it can be drawn again at any time.
"""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from forage.agent.episode import Episode, read_episodes
from forage.agent.episode_files import episode_files
from forage.cli import run_script
from forage.errors import UserError
from forage.files import replacing
from forage.runs.plots import FIGURES, draw_plots
from forage.runs.stats import StepStats, read_stats
from forage.text import encodable

DRAW_EVERY = 20.0  # seconds: drawing takes one or two, which would slow short steps down


class PlotSchedule:
    """Decides after which steps to draw: those with an evaluation, and any that ends 20 seconds after the last drawing.

    Example: steps end after 8, 16, 24, 32 and 50 seconds, the second one with an evaluation: drawn at 16 and 50.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, every: float = DRAW_EVERY) -> None:
        self._clock, self._every = clock, every
        self._drawn_at = clock()

    def due(self, stats: StepStats) -> bool:
        """Whether to draw now, after this step; if so, the next 20 seconds begin."""
        now = self._clock()
        if stats.evaluation is None and now - self._drawn_at < self._every:
            return False
        self._drawn_at = now
        return True


def draw_report(run_dir: Path, stats: Sequence[StepStats]) -> None:
    """Draw the plots and write report.html, with episodes of the last step."""
    draw_plots(run_dir, stats)
    played = episode_files(run_dir / "episodes" / f"{stats[-1].step:06d}")
    write_report(run_dir, stats, shown_episodes([episode for path in played for episode in read_episodes(path)]))


PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1200px; margin: 2em auto;
  padding: 0 1em }}
h1 {{ font-size: 1.5em }}
h2 {{ font-size: 1.15em; margin-top: 2em }}
img {{ width: 100%; height: auto; margin: 1em 0 }}
.tables {{ display: flex; flex-wrap: wrap; gap: 0 3em; align-items: start }}
table {{ border-collapse: collapse; margin: .5em 0 1.5em }}
caption {{ text-align: left; font-weight: 600 }}
th, td {{ text-align: right; padding: .1em 0 .1em 1.2em; border-top: 1px solid #ddd;
  font-variant-numeric: tabular-nums }}
th:first-child {{ text-align: left; padding-left: 0; font-weight: 400 }}
pre {{ white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: 1em; font-size: 14px }}
summary {{ cursor: pointer }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def write_report(run_dir: Path, stats: Sequence[StepStats], episodes: Iterable[tuple[str, str]]) -> None:
    """Write report.html: the plots in the folder, the last step's statistics, and episodes as (title, text)."""
    last = stats[-1]
    parts = [f"<p>{len(stats)} steps up to step {last.step}, whose episodes {escaped(last.adapter)} sampled.</p>"]
    parts += [f"<p><b>Note:</b> {escaped(note)}</p>" for note in last.notes]
    parts += [_image(run_dir / name) for name in FIGURES if (run_dir / name).exists()]
    parts += [f"<h2>Step {last.step}</h2>", '<div class="tables">', *_tables(last), "</div>"]
    shown = [
        f"<details><summary>{escaped(title)}</summary><pre>{escaped(text)}</pre></details>" for title, text in episodes
    ]
    parts += ["<h2>Episodes</h2>", *shown] if shown else []
    with replacing(run_dir / "report.html") as file:
        file.write(PAGE.format(title=escaped(run_dir.resolve().name), body="\n".join(parts)))


def escaped(text: str) -> str:
    """Text made safe for the page: what a model wrote can neither become a tag nor break the file's encoding."""
    return html.escape(encodable(text))


def _image(path: Path) -> str:
    return (
        f'<img alt="{escaped(path.stem)}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'
    )


def _tables(stats: StepStats) -> list[str]:
    tables: dict[str, Mapping[str, Any]] = {
        "Rewards": stats.summary, "Evaluation, 95 % interval": stats.evaluation or {}, "Episodes": stats.episodes,
        "Groups": stats.groups, "Ended by": stats.stops, "Protocol faults": stats.faults,
        "Update": stats.training, "Seconds": stats.seconds,
    }  # fmt: skip
    return [_table(caption, rows) for caption, rows in tables.items() if rows]


def _table(caption: str, rows: Mapping[str, Any]) -> str:
    """A row per name, with a column per figure where it has several. Example: {"mrr": {"mean": .5, "std": .1}}."""
    lines, first = [], next(iter(rows.values()))
    if isinstance(first, Mapping):
        lines.append("<tr><th></th>" + "".join(f"<th>{escaped(column)}</th>" for column in first) + "</tr>")
    for name, value in rows.items():
        figures = value.values() if isinstance(value, Mapping) else [value]
        cells = "".join(f"<td>{figure:.4g}</td>" for figure in figures)
        lines.append(f"<tr><th>{escaped(name)}</th>{cells}</tr>")
    return f"<table><caption>{escaped(caption)}</caption>{''.join(lines)}</table>"


def shown_episodes(episodes: Sequence[Episode]) -> list[tuple[str, str]]:
    """(title, text) of the episodes with the highest, the middle and the lowest reward."""
    ordered = sorted(episodes, key=lambda episode: (-episode.reward, episode.id))
    places = {0: "best", len(ordered) // 2: "middle", len(ordered) - 1: "worst"} if ordered else {}
    return [(f"{place}: {_title(ordered[index])}", ordered[index].transcript) for index, place in places.items()]


def _title(episode: Episode) -> str:
    rewards = ", ".join(f"{name} {value:.3f}" for name, value in episode.rewards.items())
    return f"{episode.id}, reward {episode.reward:.3f} ({rewards}), ended by {episode.stop}"


# Command line


@dataclass(frozen=True)
class Options:
    """Draw a run's plots and report again."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Run folder."""


def main(options: Options) -> None:
    stats = read_stats(options.run_dir)
    if not stats:
        raise UserError(f"{options.run_dir} has no training_stats_<step>.json; is it the folder of a training run?")
    draw_report(options.run_dir, stats)
    print(f"{options.run_dir / 'report.html'} shows {len(stats)} steps")


if __name__ == "__main__":
    run_script(main, description=__doc__)
