"""Evaluation of rewrites: ways to make a search query of the same questions, measured side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from forage.errors import UserError
from forage.files import replacing
from forage.metrics import ndcg, recall, reciprocal_rank
from forage.rewriter.rewards import Search
from forage.rewriter.rewrites import Row
from forage.statistics import Interval, bootstrapped, clear, span

RAW = "raw query"


@dataclass(frozen=True)
class Measured:
    """One way, question by question."""

    way: str
    searched: list[str]
    recall: list[float]
    ndcg: list[float]
    mrr: list[float]


def measured(way: str, rows: Sequence[Row], searched: Sequence[str], search: Search, k: int) -> Measured:
    """Search for each row's query, and compare what was found with what is relevant."""
    pairs = [(found, row.relevant_doc_ids) for found, row in zip(search(searched), rows, strict=True)]
    return Measured(
        way, list(searched), [recall(*pair) for pair in pairs], [ndcg(*pair, k) for pair in pairs],
        [reciprocal_rank(*pair) for pair in pairs],
    )  # fmt: skip


def difference(one: Measured, other: Measured) -> Interval:
    """How much more of the relevant documents one finds, question by question. Example: [1, 0] over [0, 0] is .5."""
    return bootstrapped([a - b for a, b in zip(one.recall, other.recall, strict=True)])


def save_measured(path: Path, ways: Sequence[Measured]) -> None:
    with replacing(path) as file:
        json.dump([asdict(way) for way in ways], file, ensure_ascii=False, indent=1)


def load_measured(path: Path) -> list[Measured]:
    try:
        return [Measured(**way) for way in json.loads(path.read_bytes())]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it to measure again") from error


def result_rows(ways: Sequence[Measured]) -> list[dict[str, object]]:
    """What evaluation.json holds of each: recall and its difference to the raw query's, with intervals."""
    raw = next(way for way in ways if way.way == RAW)
    return [
        {
            "way": way.way, "questions": len(way.recall), "recall": bootstrapped(way.recall),
            "over_raw": difference(way, raw), "ndcg": float(np.mean(way.ndcg)), "mrr": float(np.mean(way.mrr)),
        }
        for way in ways
    ]  # fmt: skip


def print_measured(ways: Sequence[Measured], k: int) -> None:
    """All ways as a table; what lies clear of zero over the raw query has a star."""
    raw = next(way for way in ways if way.way == RAW)
    count = len(raw.recall)
    table = Table("", f"recall@{k}", "95 %", "over raw", "95 %", f"nDCG@{k}", f"MRR@{k}", title=f"{count} held out")
    table.columns[0].no_wrap = True
    for way in ways:
        own, over = bootstrapped(way.recall), difference(way, raw)
        compared = ("", "") if way is raw else (f"{over['mean']:+.3f}", span(over) + " *" * clear(over))
        table.add_row(
            way.way, f"{own['mean']:.3f}", span(own), *compared,
            f"{np.mean(way.ndcg):.3f}", f"{np.mean(way.mrr):.3f}",
        )  # fmt: skip
    Console(width=120).print(table)
