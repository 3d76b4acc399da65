"""Tables of what was read and made, with an example of each thing that was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from forage.data.own_documents import FileRecord
from forage.questions.candidates import Made
from forage.text import one_line

LONGEST_EXAMPLE = 120
Row = tuple[str, int, str]
"""What there is, how many, and an example."""


def print_read(records: Sequence[FileRecord]) -> None:
    """How many files became documents, by type, and why the others did not."""
    causes = Counter(record.cause for record in sorted(records, key=lambda record: record.cause != "ok"))
    rows = []
    for cause, count in causes.items():
        those = [record for record in records if record.cause == cause]
        kinds = counted(record.detail for record in those if record.detail) if cause in ("ok", "other type") else ""
        rows.append((f"{'read' if cause == 'ok' else cause}{kinds and f' ({kinds})'}", count, those[0].path))
    show("files", rows)


def print_made(made: Made) -> None:
    """How many questions were kept and dropped, and how easily a search with the question itself finds its passage."""
    examples = {one.reason: one.question or one.answer for one in reversed(made.dropped)}
    kinds = counted(one.candidate.kind for one in made.kept)
    show("questions", [
        ("made", len(made.kept) + len(made.dropped), ""),
        (f"kept{kinds and f' ({kinds})'}", len(made.kept), made.kept[0].candidate.question if made.kept else ""),
        *((f"dropped: {reason}", count, examples[reason]) for reason, count in made.reasons.most_common()),
        (f"passages read, of {made.passages:,}", made.read, ""),
        ("passages that give no question", made.fruitless, ""),
    ])  # fmt: skip
    if made.kept:
        ranks = [one.rank for one in made.kept]
        print(
            f"A search with the question itself has MRR@{made.k} {sum(1 / rank for rank in ranks) / len(ranks):.2f} on "
            f"them, and finds {ranks.count(1) / len(ranks):.0%} of their passages first."
        )


def counted(kinds: Iterable[str]) -> str:
    """Example: "md 3, txt 1"."""
    return ", ".join(f"{kind} {count:,}" for kind, count in Counter(sorted(kinds)).most_common(5))


def show(what: str, rows: Iterable[Row]) -> None:
    table = Table(what, "", "for example")
    for name, count, example in rows:
        line = one_line(example)
        shown = line if len(line) <= LONGEST_EXAMPLE else f"{line[: LONGEST_EXAMPLE - 3]}..."
        table.add_row(escape(name), f"{count:,}", escape(shown))
    Console().print(table)
