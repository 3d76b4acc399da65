"""Hit: a passage that a search found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forage.store.options import StoreOptions

if TYPE_CHECKING:
    from forage.store.embedder import Reranker


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk found for a query; `rank` counts from 1."""

    chunk_id: str
    doc_id: str
    title: str
    text: str
    score: float
    rank: int


def reranked(query: str, hits: Sequence[Hit], reranker: Reranker, options: StoreOptions) -> list[Hit]:
    """The hits in the order of the reranker's scores, equal ones as they were."""
    scores = reranker.scores(query, [options.searched_text(hit.title, hit.text) for hit in hits]).tolist()
    order = sorted(range(len(hits)), key=lambda place: -scores[place])
    return [replace(hits[place], score=scores[place], rank=rank) for rank, place in enumerate(order, 1)]
