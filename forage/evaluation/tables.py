"""Tables: printed on a terminal, or as Markdown."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from forage.evaluation.measures import COSTS
from forage.metrics import Interval, clear, signed, span
from forage.text import one_line, printable

WIDTH = 100  # of what is printed
STAR = "*: the interval excludes zero"
CELL = 23  # characters of the widest figure, which stands above its interval, and of the line between


@dataclass(frozen=True)
class Table:
    """A row for each name, a cell for each column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    below: str = ""
    """A paragraph in Markdown; on a terminal it is printed where all tables end."""

    def __str__(self) -> str:
        """As Markdown, under a heading."""
        lines = [f"| | {' | '.join(self.columns)} |", f"|---|{'---|' * len(self.columns)}"]
        lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in self.rows]
        return "\n".join([f"## {html.escape(one_line(self.title))}", "", *lines, "", html.escape(self.below)]).rstrip()


def print_table(table: Table, console: Console | None = None) -> None:
    """In as many parts as it takes for each to fit into the width."""
    longest = max(len(name) for name, _ in table.rows)
    step = max(1, (WIDTH - longest - 4) // CELL)
    console = console or Console(width=max(WIDTH, longest + 40))
    for start in range(0, len(table.columns), step):
        part = RichTable("", *map(one_line, table.columns[start : start + step]))
        part.title = Text(printable(table.title)) if not start else None
        for name, cells in table.rows:
            part.add_row(Text(printable(name)), *(cell.replace(" (", "\n(") for cell in cells[start : start + step]))
        for column in part.columns:
            column.no_wrap = True
        console.print(part)


def tables_of(rows: Sequence[Mapping[str, Any]], title: str, *, whole: bool) -> list[Table]:
    """The rows of eval.json: scores, differences and costs; if `whole`, at every cutoff."""
    shown = columns(rows, whole=whole)
    scores = [(row["name"], [figure(row["metrics"][name]) for name in shown]) for row in rows]
    tables = [Table(title, list(shown.values()), scores)]
    if rows[1:]:
        heading = f"Difference to {rows[0]['name']}, paired ({STAR})"
        cells = [(row["name"], [difference(row["over_reference"][name]) for name in shown]) for row in rows[1:]]
        tables.append(Table(heading, list(shown.values()), cells))
    costs = [(row["name"], [f"{row['metrics'][name]['mean']:,.4g}" for name in COSTS]) for row in rows]
    tables.append(Table("Cost per question", COSTS, costs))
    return tables


def pair_table(rows: Sequence[Mapping[str, Any]], title: str, below: str, *, whole: bool) -> Table:
    """Two rows of eval.json beside each other, a line for each score: a pair is read at a glance."""
    first, second = rows
    lines = [
        (label, [*(figure(row["metrics"][name]) for row in rows), difference(second["over_reference"][name])])
        for name, label in columns(rows, whole=whole).items()
    ]
    return Table(title, (first["name"], second["name"], "difference"), lines, below)


def columns(rows: Sequence[Mapping[str, Any]], *, whole: bool) -> dict[str, str]:
    """The scores to show with their headings, those of one kind that are equal in every row once; else first cutoffs.

    Example: {"mrr": "mrr, mrr@3", "recall@3": "recall@3", "recall@10": "recall@10"}.
    """
    alike: dict[str, list[str]] = {}
    for name in score_names(rows) if whole else first_cutoffs(score_names(rows)):
        alike.setdefault(f"{name.partition('@')[0]} {[row['metrics'][name] for row in rows]}", []).append(name)
    return {names[0]: ", ".join(names) for names in alike.values()}


def score_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics where higher is better."""
    return [name for name in rows[0]["metrics"] if name not in COSTS]


def first_cutoffs(names: Sequence[str]) -> list[str]:
    """Example: mrr, recall@3, recall@10 gives mrr, recall@3."""
    firsts: dict[str, str] = {}
    for name in names:
        firsts.setdefault(name.partition("@")[0], name)
    return list(firsts.values())


def figure(found: Interval) -> str:
    """Example: 0.500 (0.400 to 0.600)."""
    return f"{found['mean']:.3f} ({span(found)})"


def difference(found: Interval) -> str:
    """Example: +0.500 (+0.400 to +0.600) *."""
    return signed(found) + " *" * clear(found)
