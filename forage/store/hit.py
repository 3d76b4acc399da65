"""Hit: a passage that a search found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk found for a query; `rank` counts from 1."""

    chunk_id: str
    doc_id: str
    title: str
    text: str
    score: float
    rank: int
