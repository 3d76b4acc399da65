"""Tables of what was read and made, with an example of each thing that was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from forage.data.own_documents import FileRecord
from forage.questions.outcome import Made
from forage.text import one_line

LONGEST_EXAMPLE = 120


def print_read(records: Sequence[FileRecord]) -> None:
    """How many files became documents, by type, and why the others did not."""
    table = Table("files", "", "for example", title="documents")
    types = Counter(record.detail for record in records if record.cause == "ok")
    by_type = ", ".join(f"{name} {count:,}" for name, count in sorted(types.items()))
    _row(table, f"read ({by_type})", sum(types.values()), _path_of(records, "ok"))
    causes = Counter(record.cause for record in records if record.cause != "ok")
    for cause, count in causes.most_common():
        kinds = Counter(record.detail for record in records if record.cause == cause and record.detail)
        named = ", ".join(f"{kind} {number:,}" for kind, number in kinds.most_common(5))
        _row(table, f"{cause} ({named})" if cause == "other type" else cause, count, _path_of(records, cause))
    Console().print(table)


def print_made(made: Made) -> None:
    """How many questions were kept and dropped, and how easily a search with the question itself finds its passage."""
    table = Table("questions", "", "for example", title="questions made")
    _row(table, "made", len(made.kept) + len(made.dropped), "")
    kinds = Counter(one.candidate.kind for one in made.kept)
    by_kind = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
    example = made.kept[0].candidate.question if made.kept else ""
    _row(table, f"kept ({by_kind})" if by_kind else "kept", len(made.kept), example)
    for reason, count in made.reasons.most_common():
        one = next(one for one in made.dropped if one.reason == reason)
        _row(table, f"dropped: {reason}", count, one.question or one.answer)
    _row(table, f"passages read, of {made.passages:,}", made.read, "")
    _row(table, "passages that give no question", made.fruitless, "")
    console = Console()
    console.print(table)
    if made.kept:
        ranks = [one.rank for one in made.kept]
        console.print(
            f"A search with the question itself has MRR@{made.k} {sum(1 / rank for rank in ranks) / len(ranks):.2f} on "
            f"them, and finds {ranks.count(1) / len(ranks):.0%} of their passages first.",
            highlight=False,
        )


def _row(table: Table, name: str, count: int, example: str) -> None:
    example = one_line(example)
    shown = example if len(example) <= LONGEST_EXAMPLE else f"{example[: LONGEST_EXAMPLE - 3]}..."
    table.add_row(escape(name), f"{count:,}", escape(shown))


def _path_of(records: Sequence[FileRecord], cause: str) -> str:
    return next((record.path for record in records if record.cause == cause), "")
