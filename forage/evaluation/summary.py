"""Evaluation: systems side by side over the same questions, as a summary, a table and a page of Markdown.

eval.json is one JSON object:

    {
    "schema": 1,
    "questions": 200, "split": "eval", "unit": "chunk",             what was found is counted in chunks or documents
    "reference": "warm/plain_rag",                                  what all others are compared with
    "options": {...},                                               of evaluate.py
    "systems": [{
        "name": "trained/single", "policy": "trained", "system": "single", "adapter": "v000040",
        "metrics": {"mrr": {"mean": .6, "low": .5, "high": .7}, ...},           each with its 95 % bootstrap interval
        "over_reference": {"mrr": {"mean": .1, "low": .05, "high": .15}, ...},  paired differences; not for the first
        "by_type": {"symptoms": {"questions": 31, "metrics": {...}, "over_reference": {...}}, ...}
    }, ...]
    }

Metrics are those of measures.py, searches, turns, tokens and seconds (COSTS there) among them: `seconds` are the
evaluation's wall-clock over its questions, `latency` is what a question took while others were played beside it.
per_question.jsonl has every value they are made of, a line a question; null where a metric can't be taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from forage.data.records import Question
from forage.evaluation.measures import COSTS, Floats, interval
from forage.statistics import Interval, clear, span

SCHEMA = 1
Intervals = dict[str, Interval]


@dataclass(frozen=True)
class Measured:
    """One policy's way of answering, measured over all questions."""

    policy: str
    system: str
    adapter: str
    """Version of the adapter that sampled; base where there was none."""
    arrays: dict[str, Floats]
    """Each metric, (questions,)."""

    @property
    def name(self) -> str:
        return f"{self.policy}/{self.system}"


def summary(systems: Sequence[Measured], questions: Sequence[Question]) -> list[dict[str, Any]]:
    """The rows of `systems` in eval.json; the first one is what the others are compared with."""
    types = np.array([question.question_type for question in questions])
    counts = Counter(types.tolist())
    places = {kind: np.flatnonzero(types == kind) for kind, _ in counts.most_common()} if len(counts) > 1 else {}
    everything = np.arange(len(questions))
    reference = systems[0]
    return [
        {
            "name": system.name, "policy": system.policy, "system": system.system, "adapter": system.adapter,
            **figures(system, reference, everything),
            "by_type": {
                kind or "(none)": {"questions": len(some), **figures(system, reference, some)}
                for kind, some in places.items()
            },
        }
        for system in systems
    ]  # fmt: skip


def figures(system: Measured, reference: Measured, places: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Intervals]:
    """Every metric over some of the questions, and how much it lies over the reference's, question by question.

    Example: [1, 0, 1] beside the reference's [0, 0, 1] has mean 2/3, and 1/3 over it.
    """
    own = {name: interval(values[places]) for name, values in system.arrays.items()}
    over = {name: interval((values - reference.arrays[name])[places]) for name, values in system.arrays.items()}
    found = {"metrics": {name: found for name, found in own.items() if found}}
    return found | ({} if system is reference else {"over_reference": {n: found for n, found in over.items() if found}})


def per_question(systems: Sequence[Measured], questions: Sequence[Question]) -> Iterable[dict[str, Any]]:
    """The lines of per_question.jsonl."""
    for place, question in enumerate(questions):
        values = {
            system.name: {name: _or_none(float(array[place])) for name, array in system.arrays.items()}
            for system in systems
        }
        yield {"id": question.id, "question_type": question.question_type, "systems": values}


def score_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics of which more is better."""
    return [name for name in rows[0]["metrics"] if name not in COSTS]


def print_rows(rows: Sequence[Mapping[str, Any]], title: str, console: Console | None = None) -> None:
    """Scores with their intervals, at the first cutoff only, and costs; then the differences to the reference."""
    names = _first_cutoffs(score_names(rows))
    heads = [name.removeprefix("answer_") for name in names]
    scores = Table("", *heads, "tokens out", "tokens in", "s", title=title)
    for row in rows:
        cells = [f"{_figure(row['metrics'][name])}\n{_short_span(row['metrics'][name])}" for name in names]
        scores.add_row(row["name"], *cells, *(f"{row['metrics'][cost]['mean']:,.4g}" for cost in _SHOWN_COSTS))
    over = Table("", *heads, "tokens out", title=f"over {rows[0]['name']}, paired; * is clear of zero")
    for row in rows[1:]:
        found = [row["over_reference"][name] for name in names]
        cells = [f"{each['mean']:+.3f}{' *' if clear(each) else ''}\n{_short_span(each)}" for each in found]
        over.add_row(row["name"], *cells, f"{row['over_reference']['sampled_tokens']['mean']:+,.4g}")
    for table in (scores, over):
        for column in table.columns:
            column.no_wrap = True
        if table.row_count:
            (console or Console(width=70 + 16 * len(names))).print(table)


def markdown(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """The same with every metric, and by question type."""
    scores, costs = score_names(rows), [name for name in COSTS if name in rows[0]["metrics"]]
    parts = [
        f"# {title}",
        "Mean over questions and its 95 % bootstrap interval.",
        _markdown_table(scores, [(row["name"], [_with_span(row["metrics"][n]) for n in scores]) for row in rows]),
    ]
    if len(rows) > 1:
        parts += [
            f"## Over {rows[0]['name']}",
            "Paired differences; bold where the interval leaves out zero.",
            _markdown_table(scores, [(r["name"], [_over(r["over_reference"][n]) for n in scores]) for r in rows[1:]]),
        ]
    parts += [
        "## Cost of a question",
        _markdown_table(
            costs, [(row["name"], [f"{row['metrics'][n]['mean']:,.4g}" for n in costs]) for row in rows]
        ),
    ]  # fmt: skip
    if rows[0]["by_type"]:
        parts.append("## By question type")
    for kind, first in rows[0]["by_type"].items():
        # A metric that no question of this type has is a dash.
        some = [(r["name"], [_with_span(r["by_type"][kind]["metrics"].get(n)) for n in scores]) for r in rows]
        parts += [f"### {kind}, {first['questions']} questions", _markdown_table(scores, some)]
    return "\n\n".join(parts) + "\n"


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
