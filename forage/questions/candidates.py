"""Candidates: questions that were made for a passage and are still to be checked, and the order of passages."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from forage.data.chunking import Chunk


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question made for a passage."""

    kind: Literal["title", "model"]
    passage: Chunk
    question: str
    answer: str
    fault: str = ""
    """Why it is dropped; empty if it is kept."""
    rank: int = 0
    """The rank at which a search with the question finds its passage."""


def in_turn(passages: Sequence[Chunk], seed: int) -> list[Chunk]:
    """Every document's first passage, then every document's second, and so on; which is first, the seed decides."""
    shuffled = sorted(passages, key=lambda passage: hashlib.sha256(f"{seed}:{passage.id}".encode()).digest())
    before, turn = Counter[str](), {}
    for passage in shuffled:
        turn[passage.id] = before[passage.doc_id]
        before[passage.doc_id] += 1
    return sorted(shuffled, key=lambda passage: turn[passage.id])
