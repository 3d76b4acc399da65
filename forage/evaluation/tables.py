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
from forage.metrics import Interval, clear, span
from forage.text import one_line, printable

WIDTH = 100  # of what is printed
CELL = 23  # characters of the widest figure, which stands above its interval, and of the line between


@dataclass(frozen=True)
class Table:
    """A row for each name, a cell for each column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]

    def __str__(self) -> str:
        """As Markdown, under a heading."""
        lines = [f"| | {' | '.join(self.columns)} |", f"|---|{'---|' * len(self.columns)}"]
        lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in self.rows]
        return "\n".join([f"## {html.escape(one_line(self.title))}", "", *lines])


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
    scores = score_names(rows)
    shown = scores if whole else first_cutoffs(scores)
    tables = [Table(title, shown, [(row["name"], [figure(row["metrics"][name]) for name in shown]) for row in rows])]
    if rows[1:]:
        heading = f"Difference to {rows[0]['name']}, paired (*: the interval excludes zero)"
        cells = [(row["name"], [difference(row["over_reference"][name]) for name in shown]) for row in rows[1:]]
        tables.append(Table(heading, shown, cells))
    costs = [(row["name"], [f"{row['metrics'][name]['mean']:,.4g}" for name in COSTS]) for row in rows]
    tables.append(Table("Cost per question", COSTS, costs))
    return tables


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
    return f"{found['mean']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})" + " *" * clear(found)
