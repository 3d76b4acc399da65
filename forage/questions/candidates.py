"""Candidates: questions that were made for a passage and are still to be checked, and the order of passages."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from forage.data.chunking import Chunk

Kind = Literal["title", "cloze", "model"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question made for a passage. `term` is the short answer inside `answer`, if it has one.

    Example of a cloze question: term "1923", answer "1923: The bridge was opened in 1923 by the king."
    """

    kind: Kind
    passage: Chunk
    question: str
    answer: str
    term: str = ""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that was not kept, or a reply that holds none, and why."""

    reason: str
    kind: Kind
    passage: Chunk
    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A candidate that was kept, and the rank at which a search with it finds its passage."""

    candidate: Candidate
    rank: int


@dataclass
class Made:
    """What became of a store's passages: questions kept, candidates dropped, and passages that gave none."""

    k: int
    """How many passages each search showed."""
    passages: int = 0
    read: int = 0
    fruitless: int = 0
    kept: list[Kept] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(one.reason for one in self.dropped)


def in_turn(passages: Sequence[Chunk], seed: int) -> list[Chunk]:
    """Every document's first passage, then every document's second, and so on; which is first, the seed decides."""
    shuffled = sorted(passages, key=lambda passage: drawn(seed, passage.id))
    before, turn = Counter[str](), {}
    for passage in shuffled:
        turn[passage.id] = before[passage.doc_id]
        before[passage.doc_id] += 1
    return sorted(shuffled, key=lambda passage: turn[passage.id])


def drawn(seed: int, *names: object) -> bytes:
    """What stands for a random number that is the same on every machine."""
    return hashlib.sha256(":".join(map(str, (seed, *names))).encode()).digest()
