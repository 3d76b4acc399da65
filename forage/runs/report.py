"""Report: draws a run's plots and report.html, one page with the plots, the last statistics and some episodes.

The episodes are the best, the middle and the worst one of the last step, and the worst five of the whole run.

    python -m forage.runs.report runs/grpo

Everything comes from the files of the run folder, so it can be drawn again at any time.
"""

from __future__ import annotations

import base64
import html
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from forage.agent.episode import STOPS, Episode, episode_files, read_episodes
from forage.agent.protocol import FAULTS
from forage.arguments import POSITIONAL
from forage.cli import run_script
from forage.data.records import Question, read_questions
from forage.errors import UserError
from forage.files import json_lines, replacing
from forage.policy.adapters import version_name
from forage.runs.plots import FIGURES, draw_plots
from forage.runs.stats import StepStats, read_evaluations, read_stats
from forage.runs.waiting import advice, shares
from forage.text import encodable, printable, titled

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
    """Draw the plots and write report.html."""
    draw_plots(run_dir, stats)
    last = chosen_of(episodes_of(run_dir, stats[-1].step))
    worst = worst_of_run(run_dir, stats, but=[episode for _, episode in last])
    library = read_library(run_dir, [episode.question_id for _, episode in (*last, *worst)])
    write_report(run_dir, stats, [shown(place, episode, library) for place, episode in (*last, *worst)])


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
dt {{ font-weight: 600 }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def write_report(run_dir: Path, stats: Sequence[StepStats], episodes: Iterable[Shown]) -> None:
    """Write report.html: the plots in the folder, the last step's statistics, and episodes."""
    last = stats[-1]
    parts = [f"<p>{len(stats)} steps up to step {last.step}, whose episodes {escaped(last.adapter)} sampled.</p>"]
    parts += [f"<p><b>Note:</b> {escaped(note)}</p>" for note in last.notes]
    if says := advice(shares(stats)):
        parts.append(f"<p><b>Which side waits:</b> {escaped(says)}.</p>")
    parts += [_image(run_dir / name) for name in FIGURES if (run_dir / name).exists()]
    parts += [f"<h2>Step {last.step}</h2>", '<div class="tables">', *_tables(last), *_evaluations(run_dir), "</div>"]
    folded = [_folded(episode) for episode in episodes]
    parts += ["<h2>Episodes</h2>", *folded] if folded else []
    with replacing(run_dir / "report.html") as file:
        file.write(PAGE.format(title=escaped(run_dir.resolve().name), body="\n".join(parts)))


def escaped(text: str) -> str:
    """Text made safe for the page: what a model wrote can neither become a tag nor break the file's encoding."""
    return html.escape(printable(encodable(text)))


def _image(path: Path) -> str:
    return (
        f'<img alt="{escaped(path.stem)}" src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}">'
    )


def _tables(stats: StepStats) -> list[str]:
    tables: dict[str, Mapping[str, Any]] = {
        "Rewards": stats.summary, "Episodes": stats.episodes, "Groups": stats.groups,
        "Ended because": explained(stats.stops, STOPS), "Protocol faults": explained(stats.faults, FAULTS),
        "Update": stats.training, "Seconds": stats.seconds, "Workers": stats.workers, "Servers": stats.servers,
    }  # fmt: skip
    return [_table(caption, rows) for caption, rows in tables.items() if rows]


def _evaluations(run_dir: Path) -> list[str]:
    """Tables of the first and the last evaluation; that after the last step is of the run's result."""
    known = read_evaluations(run_dir)
    versions = dict.fromkeys((min(known), max(known))) if known else {}
    return [_table(f"Evaluation of {version_name(number)}, 95 % interval", known[number]) for number in versions]


def explained(counts: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Counts under names with their words. Example: {"turns": 2} gives {"turns: the last turn allowed ...": 2}."""
    return {f"{name}: {words[name]}" if name in words else name: count for name, count in counts.items()}


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


# Episodes


@dataclass(frozen=True)
class Shown:
    """An episode on the page."""

    title: str
    facts: Sequence[tuple[str, str]]
    """Name and text: what people want to know before they read the transcript."""
    transcript: str


@dataclass(frozen=True)
class Library:
    """The questions of the episodes shown, and the passages that answer them; empty where the data is gone."""

    questions: Mapping[str, Question]
    passages: Mapping[str, str]


def episodes_of(run_dir: Path, step: int) -> list[Episode]:
    files = episode_files(run_dir / "episodes" / f"{step:06d}")
    return [episode for path in files for episode in read_episodes(path)]


def chosen_of(episodes: Sequence[Episode]) -> list[tuple[str, Episode]]:
    """The episodes with the highest, the middle and the lowest reward, and which of these they are."""
    ordered = sorted(episodes, key=lambda episode: (-episode.reward, episode.id))
    places = {0: "best", len(ordered) // 2: "middle", len(ordered) - 1: "worst"} if ordered else {}
    return [(place, ordered[index]) for index, place in places.items()]


def worst_of_run(
    run_dir: Path, stats: Sequence[StepStats], but: Sequence[Episode], count: int = 5
) -> list[tuple[str, Episode]]:
    """The episodes with the lowest rewards of the run, of equal ones the latest; those of `but` are shown already.

    The statistics tell in which steps they are, so that only a few steps' files are read.
    """
    lowest = sorted((reward, -step.step) for step in stats for reward in step.rewards.get("overall", ()))
    steps = {-step for _, step in lowest[: count + len(but)]}
    found = [(step, episode) for step in steps for episode in episodes_of(run_dir, step) if episode not in but]
    found.sort(key=lambda pair: (pair[1].reward, -pair[0], pair[1].id))
    return [(f"among the worst of the run, step {step}", episode) for step, episode in found[:count]]


def read_library(run_dir: Path, question_ids: Collection[str]) -> Library:
    """The questions, and the passages that answer them, from the data folder that the run's config.json names.

    Empty where that is gone, damaged or just being made again: the page says so, and training goes on.
    """
    try:
        data = Path(json.loads((run_dir / "config.json").read_text())["rollout"]["data"])
        questions = {q.id: q for q in read_questions(data / "train.jsonl") if q.id in question_ids}
        wanted = {chunk for question in questions.values() for chunk in question.relevant_chunk_ids}
        return Library(questions, passages_of(data / "store" / "chunks.jsonl", wanted))
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return Library({}, {})


def passages_of(path: Path, wanted: Collection[str]) -> dict[str, str]:
    """The texts of some chunks; reads no further than the last of them."""
    found: dict[str, str] = {}
    if wanted and path.is_file():
        for _, row in json_lines(path):
            if (name := f"{row['doc_id']}#{row['index']}") in wanted:
                found[name] = titled(row["title"], row["text"])
                if len(found) == len(wanted):
                    break
    return found


def shown(place: str, episode: Episode, library: Library) -> Shown:
    """Example of facts: ("Reference answer", "Rest."), ("Wanted passage", "d1#0 (not found): Gout: ..."), ..."""
    facts: list[tuple[str, str]] = []
    question = library.questions.get(episode.question_id)
    if question:
        facts += [("Question", question.question), ("Reference answer", question.answer or "none")]
        facts += [
            ("Wanted passage", f"{chunk} ({_rank(chunk, episode)}): {library.passages.get(chunk, 'gone')}")
            for chunk in question.relevant_chunk_ids
        ]
    else:
        facts.append(("Question", f"{episode.question_id}; the data folder of the run is not here to tell more"))
    facts += [("Answer", episode.answer or "none"), ("Ended because", STOPS.get(episode.stop, episode.stop))]
    facts += [("Fault", f"{FAULTS.get(fault, fault)} ({fault})") for fault in dict.fromkeys(episode.faults)]
    return Shown(f"{place}: {_title(episode)}", facts, episode.transcript)


def _rank(chunk: str, episode: Episode) -> str:
    """Where the policy saw a chunk among all that it saw, each counted once, as the reward mrr counts."""
    return f"number {episode.hits.index(chunk) + 1} of what it saw" if chunk in episode.hits else "not found"


def _folded(episode: Shown) -> str:
    facts = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(text)}</dd>" for name, text in episode.facts)
    transcript = f"<dl>{facts}</dl><pre>{escaped(episode.transcript)}</pre>"
    return f"<details><summary>{escaped(episode.title)}</summary>{transcript}</details>"


def _title(episode: Episode) -> str:
    rewards = ", ".join(f"{name} {value:.3f}" for name, value in episode.rewards.items())
    return f"{episode.id}, reward {episode.reward:.3f} ({rewards}), ended by {episode.stop}"


# Command line


@dataclass(frozen=True)
class Options:
    """Draw a run's plots and report again."""

    run_dir: Annotated[Path, POSITIONAL]
    """Run folder."""


def main(options: Options) -> None:
    stats = read_stats(options.run_dir)
    if not stats:
        raise UserError(f"{options.run_dir} has no training_stats_<step>.json; is it the folder of a training run?")
    draw_report(options.run_dir, stats)
    print(f"{options.run_dir / 'report.html'} shows {len(stats)} steps")


if __name__ == "__main__":
    run_script(main, description=__doc__)
